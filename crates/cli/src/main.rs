//! The `hetal` program.

use std::process::ExitCode;

/// Overwrites freed memory with zeros: it may hold a secret key, decrypted rows or a passphrase.
#[global_allocator]
static MEMORY: hetal_keys::ZeroingAllocator = hetal_keys::ZeroingAllocator;

fn main() -> ExitCode {
    hetal_cli::main(std::env::args_os().collect()).into()
}
