//! Ends a process together with the process that started it.

use std::io::Read;

/// Ends this process when the one that started it has ended: then standard input is closed.
/// Standard input is not read otherwise.
pub fn end_with_parent() {
    // A process that is stopped does not read: on Linux the system ends it.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    std::thread::spawn(|| {
        let mut buffer = [0; 64];
        while std::io::stdin().read(&mut buffer).is_ok_and(|read| read > 0) {}
        std::process::exit(1);
    });
}
