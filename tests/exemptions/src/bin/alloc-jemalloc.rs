//! jemalloc: written in C, with a cache for each thread.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    indent_exemptions::allocating::program(|builder| builder);
}
