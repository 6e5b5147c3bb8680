//! The macro. It takes the arms one by one. Each arm becomes a variable of a `match` around the
//! rest, so that its borrows live long enough, and an entry in the list of bodies. At the end all
//! arms go to the engine, which returns the number of the arm that has fired.

/// Waits until the first of several arms can fire, and runs its body.
///
/// See [the module](mod@crate::select) for the kinds of arms.
///
/// ```
/// use indent::{chan, select, spawn};
/// use std::time::Duration;
///
/// let (tx, rx) = chan::bounded(0);
/// let sender = spawn(move || tx.send("news"));
/// let heard = select! {
///     recv(&rx) -> value => value.unwrap(),
///     after(Duration::from_secs(60)) => "nothing for a minute",
/// };
/// assert_eq!(heard, "news");
/// sender.join().unwrap().unwrap();
///
/// // Without blocking, and with arms that may be absent:
/// let closed = select! {
///     recv(Some(&rx)) -> value => value.is_err(),
///     default => false,
/// };
/// assert!(closed);
///
/// // A fiber and a channel; a value that is not sent stays in its `Option`.
/// let (full, _rx) = chan::bounded(0);
/// let mut value = Some(1);
/// let fiber = spawn(|| 42);
/// select! {
///     join(fiber) -> result => assert_eq!(result.unwrap(), 42),
///     send_from(&full, &mut value) => unreachable!("there is no receiver"),
/// }
/// assert_eq!(value, Some(1));
/// ```
///
/// The handle in `join` is a variable or a field, and stays there if another arm fires.
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
    () => { compile_error!("a select without arms would block forever; add an arm") };
    (@$($broken:tt)*) => {
        compile_error!("not an arm of a select; see the documentation of indent::select")
    };
    ($($arms:tt)+) => {
        $crate::__select!(@next
            [0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15
             16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31]
            [] [] $($arms)+)
    };
}

/// The steps of `select!`: `@next [unused numbers] [arms so far] [default] remaining input`.
#[doc(hidden)]
#[macro_export]
macro_rules! __select {
    // The input is used up.
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
    // The default arm.
    (@next $left:tt $arms:tt [] default => $body:block $(,)? $($rest:tt)*) => {
        $crate::__select!(@next $left $arms [$body] $($rest)*)
    };
    (@next $left:tt $arms:tt [] default => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@next $left $arms [$body] $($($rest)*)?)
    };
    (@next $left:tt $arms:tt [$first:expr] default => $($rest:tt)*) => {
        compile_error!("a select has one `default`")
    };
    // There is another arm, and no number left for it.
    (@next [] $($rest:tt)*) => {
        compile_error!("a select! has at most 32 arms; use indent::select::Select for more")
    };
    // An arm: its kind and what is in the brackets, the pattern, the body, the remaining input.
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt -> $p:pat => $body:block $(,)?
        $($rest:tt)*) => {
        $crate::__select!(@arm $kind $what [$p] [$body] $left $arms $default $($rest)*)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt -> $p:pat => $body:expr
        $(, $($rest:tt)*)?) => {
        $crate::__select!(@arm $kind $what [$p] [$body] $left $arms $default $($($rest)*)?)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt => $body:block $(,)?
        $($rest:tt)*) => {
        $crate::__select!(@arm $kind $what [_] [$body] $left $arms $default $($rest)*)
    };
    (@next $left:tt $arms:tt $default:tt $kind:ident $what:tt => $body:expr $(, $($rest:tt)*)?) => {
        $crate::__select!(@arm $kind $what [_] [$body] $left $arms $default $($($rest)*)?)
    };
    // The kinds of arms.
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
    // The handle is named twice: it is borrowed, and moved out if the arm fires. An expression
    // would be evaluated twice, so only a variable or a field is accepted.
    (@arm join ($handle:ident $(. $field:tt)* $(,)?) [$p:pat] [$body:expr] [$n:tt $($left:tt)*]
        [$($arms:tt)*] $default:tt $($rest:tt)*) => {
        match $crate::select::join_arm(&$handle $(. $field)*) {
            arm => $crate::__select!(@next [$($left)*]
                [$($arms)* ($n arm [let $p = $handle $(. $field)* .join();] $body)]
                $default $($rest)*),
        }
    };
    (@arm join ($($what:tt)*) $($rest:tt)*) => {
        compile_error!("`join` in a select takes a variable or a field of one: bind the handle \
            with `let` first, so that it is still there if another arm fires")
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
        compile_error!(concat!("a select has no arm `", stringify!($kind), "`; use recv, send, \
            send_from, join, finished, readable, writable, after, at or default"))
    };
    // Adds an arm.
    (@one [$make:expr] [$p:pat] [$body:expr] [$n:tt $($left:tt)*] [$($arms:tt)*] $default:tt
        $($rest:tt)*) => {
        match $make {
            mut arm => $crate::__select!(@next [$($left)*]
                [$($arms)*
                    ($n arm [let $p = $crate::select::Fires::finish(&mut arm);] $body)]
                $default $($rest)*),
        }
    };
    (@$($broken:tt)*) => {
        compile_error!("not an arm of a select, which is `kind(what) -> pattern => expression,`; \
            see the documentation of indent::select")
    };
}
