//! The system's allocator, which the others are compared with.

fn main() {
    indent_exemptions::allocating::program(|builder| builder);
}
