//! One example and no other, so that only its own code binds it.

use std::process::ExitCode;

use indent_bodies::body::{Body, Me, Outcome};
use indent_bodies::{examples, run};

const BODY: Body = match option_env!("INDENT_BODY") {
    Some(name) => examples::named(name),
    None => examples::named("nothing"),
};

/// Calls it directly.
///
/// No pointer leads to the code that a fiber begins with, as in a service.
fn call(me: &Me) -> Outcome {
    const RUN: fn(&Me) -> Outcome = BODY.run;
    RUN(me)
}

fn main() -> ExitCode {
    ExitCode::from(if run::alone(BODY.name, call, BODY.fibers, BODY.plain) {
        0
    } else {
        run::WRONG as u8
    })
}
