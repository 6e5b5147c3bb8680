use super::super::objects::Objects;
use super::*;

/// Counts the functions of an object, and how many of its rows are walkable.
fn survey(object: &Object) -> (usize, usize, usize) {
    let tables = Tables::of(object).unwrap();
    let mut unwinder = Unwinder::new();
    let (mut functions, mut rows, mut walkable) = (0, 0, 0);
    let mut entries = tables.frames.entries(&tables.bases);
    while let Ok(Some(entry)) = entries.next() {
        let gimli::CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset).unwrap();
        functions += 1;
        let context = &mut unwinder.context;
        let mut table = fde.rows(&tables.frames, &tables.bases, context).unwrap();
        while let Ok(Some(row)) = table.next_row() {
            rows += 1;
            walkable += usize::from(condense(row).is_some());
        }
    }
    (functions, rows, walkable)
}

#[test]
fn nearly_all_rows_of_the_executable_are_walkable() {
    let objects = Objects::now();
    let (functions, rows, walkable) = survey(&objects.list[0]);
    println!("{functions} functions, {rows} rows, {walkable} walkable");
    assert!(functions > 500);
    assert!(rows - walkable < rows / 200);
}

#[test]
fn the_row_of_a_call_is_found_by_its_address() {
    let objects = Objects::now();
    let object = &objects.list[0];
    let here = the_row_of_a_call_is_found_by_its_address as fn() as usize;
    // At its first instruction nothing but the return address has been pushed.
    let first = Unwinder::new().row(object, here).unwrap();
    assert_eq!((first.base, first.cfa), (Base::Sp, 1));
    assert_eq!(first.bp, CallersBp::Same);
}

#[test]
fn what_has_no_entry_is_not_walkable() {
    let objects = Objects::now();
    let object = &objects.list[0];
    let mut unwinder = Unwinder::new();
    let data = object.unwind.clone().unwrap();
    assert_eq!(unwinder.row(object, data.start), None);
    assert_eq!(unwinder.row(object, 8), None);
    let mut bare = object.clone();
    bare.unwind = None;
    let here = what_has_no_entry_is_not_walkable as fn() as usize;
    assert_eq!(unwinder.row(&bare, here), None);
}

#[test]
fn the_tables_of_a_library_are_read_while_it_stays() {
    let objects = Objects::now();
    // A function that nothing here calls: otherwise it could be a stub of ours in an executable
    // linked for a fixed address.
    // SAFETY: asks for a name.
    let lfind = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"lfind".as_ptr()) }.addr();
    let object = objects.at(lfind).unwrap();
    let row = || while_still(objects.census, || Unwinder::new().row(object, lfind));
    assert_eq!(row().flatten().map(|row| row.cfa), Some(1));
    let mut other = objects.census;
    other.loaded += 1;
    assert_eq!(while_still(other, || ()), None);
}

#[test]
fn rules_that_no_walk_can_follow_are_refused() {
    assert_eq!(words(24), Some(3));
    assert_eq!(words(20), None);
    assert_eq!(words(-8), None);
    assert_eq!(words(i64::MAX & !7), None);
    let saved = |offset| callers_bp(Some(RegisterRule::Offset(offset)));
    assert_eq!(saved(-16), CallersBp::Saved(2));
    assert_eq!(saved(-8), CallersBp::Unknown, "there is the return address");
    assert_eq!(saved(16), CallersBp::Unknown);
    let undefined = callers_bp(Some(RegisterRule::Undefined));
    assert_eq!(undefined, CallersBp::Unknown);
}
