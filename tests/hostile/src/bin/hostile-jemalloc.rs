//! The programs with jemalloc: caches per thread, locks per arena, and its own thread destructors.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    indent_hostile::main()
}
