//! The programs with the system's allocator; see the library.

fn main() -> std::process::ExitCode {
    indent_hostile::main()
}
