use super::*;
use std::cell::{Cell, RefCell};

thread_local! {
    static FIRST: Cell<u8> = const { Cell::new(3) };
    static SECOND: Cell<u64> = const { Cell::new(5) };
    static THIRD: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

fn offset<T>(variable: &T) -> isize {
    ptr::from_ref(variable) as isize - arch::thread_pointer() as isize
}

#[test]
fn variables_of_the_program_are_exchanged_and_the_runtimes_are_not() {
    if let Err(why) = prepare(&[]) {
        let name = "variables_of_the_program_are_exchanged_and_the_runtimes_are_not";
        return crate::sys::stderr::print(&format!("SKIPPED {name}: {why:?}\n"));
    }
    let layout = LAYOUT.get().unwrap().as_ref().unwrap();
    FIRST.with(|first| assert!(!layout.has(offset(first)), "a name in the crate indent"));
    BLOCK.with(|block| assert!(!layout.has(offset(block))));
    assert!(layout.has(layout.current_thread), "std's");
    assert!(!layout.has(0), "the control block");
}

#[test]
fn an_image_brings_back_what_was_saved_and_nothing_else() {
    let all = ThreadLocals::of_executable().unwrap();
    let named = |name: &str| {
        let mut found = all.variables.iter().filter(|v| v.name.contains(name));
        found.next().unwrap().range.clone()
    };
    // As if they were the only ones.
    let mut layout = Layout::of(vec![named("tests::FIRST"), named("tests::SECOND")]);
    layout.fill(&all);
    // On a thread without a test: whatever it uses is its own.
    std::thread::spawn(move || {
        assert!(layout.is_pristine());
        FIRST.set(11);
        SECOND.set(12);
        THIRD.with_borrow_mut(|third| third.push(1));
        assert!(!layout.is_pristine());
        let image = layout.allocate();
        // SAFETY: an image of this layout; there is no reference to the variables.
        unsafe { layout.save(arch::thread_pointer(), image) };
        // SAFETY: as above.
        unsafe { layout.load(arch::thread_pointer(), layout.pristine()) };
        assert!(layout.is_pristine());
        assert_eq!((FIRST.get(), SECOND.get()), (3, 5));
        THIRD.with_borrow(|third| assert_eq!(*third, [1]));
        // SAFETY: as above.
        unsafe { layout.load(arch::thread_pointer(), image) };
        assert_eq!((FIRST.get(), SECOND.get()), (11, 12));
        // SAFETY: made above.
        unsafe { layout.free(image) };
    })
    .join()
    .unwrap();
}

#[test]
fn destructors_run_last_first_with_those_that_are_registered_meanwhile() {
    thread_local! {
        static RAN: RefCell<Vec<isize>> = const { RefCell::new(Vec::new()) };
        static LIST: Destructors = const { Destructors::none() };
    }
    unsafe extern "C" fn note(variable: *mut c_void) {
        let offset = variable.addr().wrapping_sub(arch::thread_pointer()) as isize;
        RAN.with_borrow_mut(|ran| ran.push(offset));
        if offset == 2 {
            LIST.with(|list| list.add(note, 7));
        }
    }
    LIST.with(|list| {
        for variable in [1, 2, 3] {
            list.add(note, variable);
        }
        list.run();
        assert!(list.is_empty());
    });
    RAN.with_borrow(|ran| assert_eq!(*ran, [3, 2, 7, 1]));
}
