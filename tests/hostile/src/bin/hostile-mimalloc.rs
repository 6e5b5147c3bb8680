//! The programs with mimalloc: heaps per thread, and lists by which other threads return memory to
//! them.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    indent_hostile::main()
}
