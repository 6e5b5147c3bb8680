//! The macro. Arms are taken one by one: each becomes a variable of a `match` around the rest, so that what it
//! borrows lives for as long, and a line in the list of what to do. At the end all are given to the engine,
//! which says by number which one has fired.

/// Waits for the first of several things, and does what belongs to it. See [the module](mod@crate::select).
///
/// ```
/// use indent::{chan, select, spawn};
/// use std::time::Duration;
///
/// let (tx, rx) = chan::bounded(0);
/// let sender = spawn(move || tx.send("changed"));
/// let heard = select! {
///     recv(&rx) -> value => value.unwrap(),
///     after(Duration::from_secs(60)) => "nothing for a minute",
/// };
/// assert_eq!(heard, "changed");
/// sender.join().unwrap().unwrap();
///
/// // Without a wait, and with arms that may be absent:
/// let closed = select! {
///     recv(Some(&rx)) -> value => value.is_err(),
///     default => false,
/// };
/// assert!(closed);
///
/// // A fiber and a channel; what is not sent stays.
/// let (full, _rx) = chan::bounded(0);
/// let mut value = Some(1);
/// let fiber = spawn(|| 42);
/// select! {
///     join(fiber) -> result => assert_eq!(result.unwrap(), 42),
///     send_from(&full, &mut value) => unreachable!("nobody receives"),
/// }
/// assert_eq!(value, Some(1));
/// ```
///
/// A handle that is joined is a variable, or a field: it stays where it is if another arm fires.
///
/// ```compile_fail
/// use std::time::Duration;
///
/// let mut fibers = vec![indent::spawn(|| 42)];
/// indent::select! {
///     join(fibers.remove(0)) -> result => assert_eq!(result.unwrap(), 42),
///     after(Duration::from_secs(60)) => {}
/// }
/// ```
#[macro_export]
macro_rules! select {
    () => { compile_error!("a select without arms would wait for ever") };
    (@$($broken:tt)*) => { compile_error!("not an arm of a select; see the documentation of indent::select") };
    ($($arms:tt)+) => { $crate::__select!(@next [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31] [] [] $($arms)+) };
}

/// The steps of `select!`: `@next [numbers left] [arms so far] [default] what is left to read`.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // Nothing is left to read.
    (@next [$($left:tt)*] [$(($n:tt $arm:ident [$($bind:tt)*] $body:expr))+] []) => {
        match $crate::select::wait(&[$($crate::select::Fires::arm(&$arm)),+]) {
            $($n => { $($bind)* $body })+
            arm => ::core::unreachable!("arm {arm} of a select"),
        }
    };
    (@next [$($left:tt)*] [$(($n:tt $arm:ident [$($bind:tt)*] $body:expr))*] [$default:expr]) => {
        match $crate::select::now_or_never(&[$($crate::select::Fires::arm(&$arm)),*]) {
            $($n => { $($bind)* $body })*
            _ => $default,
        }
    };
    // The default.
    (@next $left:tt $arms:tt [] default => $body:block $(,)? $($rest:tt)*) => {
        $crate::__select!(@next $left $arms [$body] $($rest)*)
    };
    (@next $left:tt $arms:tt [] default => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@next $left $arms [$body] $($($rest)*)?)
    };
    (@next $left:tt $arms:tt [$first:expr] default => $($rest:tt)*) => {
        compile_error!("a select has one `default`")
    };
    // Something is left to read, and no number for it.
    (@next [] $($rest:tt)*) => { compile_error!("a select! has 32 arms at most: use indent::select::Select for more") };
    // An arm: its name and what is in the brackets, the pattern, what to do, the rest.
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt -> $p:pat => $body:block $(,)? $($rest:tt)*) => {
        $crate::__select!(@arm $kind $what [$p] [$body] $left $arms $default $($rest)*)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt -> $p:pat => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@arm $kind $what [$p] [$body] $left $arms $default $($($rest)*)?)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt => $body:block $(,)? $($rest:tt)*) => {
        $crate::__select!(@arm $kind $what [_] [$body] $left $arms $default $($rest)*)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@arm $kind $what [_] [$body] $left $arms $default $($($rest)*)?)
    };
    // What each arm is.
    (@arm recv ($from:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::recv($from)] $($rest)*)
    };
    (@arm send ($to:expr, $value:expr $(,)?) $($rest:tt)*) => {
        match ::core::option::Option::Some($value) {
            mut value => $crate::__select!(@one [$crate::select::send($to, &mut value)] $($rest)*),
        }
    };
    (@arm send_from ($to:expr, $slot:expr $(,)?) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::send($to, $slot)] $($rest)*)
    };
    // A place is named twice: it is borrowed, and the handle moved out if the arm fires. An expression would be
    // evaluated twice.
    (@arm join ($handle:ident $(. $field:tt)* $(,)?) [$p:pat] [$body:expr] [$n:tt $($left:tt)*] [$($arms:tt)*] $default:tt $($rest:tt)*) => {
        match $crate::select::join_arm(&$handle $(. $field)*) {
            arm => $crate::__select!(@next [$($left)*] [$($arms)* ($n arm [let $p = $handle $(. $field)* .join();] $body)] $default $($rest)*),
        }
    };
    (@arm join ($($what:tt)*) $($rest:tt)*) => {
        compile_error!("`join` in a select takes a variable or a field of one: bind the handle with `let` first, so that \
            it is still there if another arm fires")
    };
    (@arm finished ($handle:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::finished($handle)] $($rest)*)
    };
    (@arm readable ($source:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::readable($source)] $($rest)*)
    };
    (@arm writable ($source:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::writable($source)] $($rest)*)
    };
    (@arm after ($time:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::in_time($time)] $($rest)*)
    };
    (@arm at ($time:expr) $($rest:tt)*) => {
        $crate::__select!(@one [$crate::select::at($time)] $($rest)*)
    };
    (@arm $kind:ident $($rest:tt)*) => {
        compile_error!(concat!("a select has no arm `", stringify!($kind), "`: it is one of recv, send, send_from, join, \
            finished, readable, writable, after, at, default"))
    };
    // One more arm.
    (@one [$make:expr] [$p:pat] [$body:expr] [$n:tt $($left:tt)*] [$($arms:tt)*] $default:tt $($rest:tt)*) => {
        match $make {
            mut arm => $crate::__select!(@next [$($left)*] [$($arms)* ($n arm [let $p = $crate::select::Fires::finish(&mut arm);] $body)] $default $($rest)*),
        }
    };
    (@$($broken:tt)*) => {
        compile_error!("not an arm of a select, which is `kind(what) -> pattern => expression,`; see the documentation of \
            indent::select")
    };
}
