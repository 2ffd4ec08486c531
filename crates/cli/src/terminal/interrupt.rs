//! What Ctrl-C says.

use std::process::exit;

/// The exit status of a program that SIGINT ended, as shells have it.
const INTERRUPTED: i32 = 130;

/// Prints a text when Ctrl-C ends the program. What a command has on disk stays, as with any other
/// sudden end. Without such a thread Ctrl-C ends the program in silence.
pub fn explain_interrupt(text: &'static str) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        if runtime.is_ok_and(|runtime| runtime.block_on(tokio::signal::ctrl_c()).is_ok()) {
            eprintln!("\nhetal: {text}");
            exit(INTERRUPTED);
        }
    });
}
