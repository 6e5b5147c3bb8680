//! mimalloc: written in C, with a heap for each thread, which knows its thread by an address.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    indent_exemptions::allocating::program(|builder| builder);
}
