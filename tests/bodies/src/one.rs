//! One example and no other: what binds it is its own.

use std::process::ExitCode;

use indent_bodies::body::Body;
use indent_bodies::{examples, run};

const BODY: Body = match option_env!("INDENT_BODY") {
    Some(name) => examples::named(name),
    None => examples::named("nothing"),
};

fn main() -> ExitCode {
    ExitCode::from(if run::alone(&BODY) {
        0
    } else {
        run::WRONG as u8
    })
}
