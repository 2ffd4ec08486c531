//! Work on another thread, without the interpreter's lock.

use crate::errors::{Error, Result};
use hetal_client::Cancellation;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two looks for signals.
const TICK: Duration = Duration::from_millis(50);

/// Runs work on another thread. Meanwhile this thread passes its events to `on_event` and lets
/// Python handle signals.
///
/// If either raises, the work is asked to end, and `on_event` receives `stopping`. The exception is
/// raised when the work has ended, so that nothing goes on behind the caller's back.
pub fn run<T, E>(
    py: Python<'_>,
    on_event: &mut dyn FnMut(Python<'_>, E) -> PyResult<()>,
    stopping: E,
    work: impl FnOnce(Sender<E>, Cancellation) -> Result<T> + Send,
) -> PyResult<T>
where
    T: Send,
    E: Send,
{
    let cancellation = Cancellation::default();
    let (send, receive) = channel::<E>();
    std::thread::scope(|scope| {
        let worker = scope.spawn({
            let cancellation = cancellation.clone();
            move || work(send, cancellation)
        });
        let receive = Mutex::new(receive);
        let listened = listen(py, &receive, on_event);
        if listened.is_err() {
            cancellation.cancel();
            // The first exception is the one that is raised.
            _ = on_event(py, stopping);
        }
        // A thread that panics has printed why.
        let result = py.detach(|| {
            // The events of work that ends are not wanted any more.
            while lock(&receive).recv().is_ok() {}
            worker.join()
        });
        listened?;
        let result = result.unwrap_or_else(|panic| Err(Error::Defect(panic_text(panic.as_ref()))));
        result.map_err(|error| error.to_py(py))
    })
}

/// Runs work that reports no progress.
pub fn quietly<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    run(py, &mut |_, (): ()| Ok(()), (), |_events, _cancellation| work())
}

/// Passes events on until the work ends.
fn listen<E: Send>(
    py: Python<'_>,
    receive: &Mutex<Receiver<E>>,
    on_event: &mut dyn FnMut(Python<'_>, E) -> PyResult<()>,
) -> PyResult<()> {
    loop {
        py.check_signals()?;
        match py.detach(|| lock(receive).recv_timeout(TICK)) {
            Ok(event) => on_event(py, event)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".to_owned())
}

/// Runs the program `hetal`, and returns its exit status.
#[pyfunction]
pub fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| hetal_cli::main(arguments))
}
