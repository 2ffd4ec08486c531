//! Work that is recorded once as a graph of kernels, and then queued with one call.

use super::{CudaBackend, CudaPoly};
use crate::Error;
use crate::device::{Device, is_recording, lane};
use crate::memory::Chunk;
use hetal_ring::Basis;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How repeated work was done, and why not otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graphs {
    /// Recordings there are.
    pub recorded: usize,
    /// Kernels in all that were made.
    pub kernels: usize,
    /// Times that one was replayed.
    pub replayed: usize,
    /// Times that work was done step by step because memory of recordings was in use, or none was
    /// left for what comes out.
    pub passed_over: usize,
    /// Why nothing is recorded any more, if so.
    pub ended: Option<String>,
}

/// The state and the counters of a backend's recordings.
pub(super) struct Recordings {
    wanted: AtomicBool,
    /// Every recording has a clone.
    alive: Arc<()>,
    pub(super) kernels: AtomicUsize,
    replayed: AtomicUsize,
    passed_over: AtomicUsize,
    /// The chunks of all recordings: replays share them, so one at a time is queued.
    arena: Mutex<Vec<Chunk>>,
}

impl Default for Recordings {
    fn default() -> Self {
        let none = || AtomicUsize::new(0);
        let wanted = AtomicBool::new(true);
        let (alive, arena) = (Arc::default(), Mutex::default());
        Self { wanted, alive, kernels: none(), replayed: none(), passed_over: none(), arena }
    }
}

/// What is remembered of work that is done again and again.
#[derive(Default)]
pub struct CudaRoutine(Mutex<Memory>);

#[derive(Default)]
enum Memory {
    #[default]
    Nothing,
    /// It was done once: what it needs of tables and keys is on the GPU.
    Done,
    Recorded(Recording),
}

/// Addresses and bases of polynomials that stay where they are.
type PolyAddresses = Vec<(u64, Basis)>;

/// Work on polynomials at fixed places. It does not own its memory: between replays others may use
/// that.
struct Recording {
    device: Arc<dyn Device>,
    number: u64,
    inputs: PolyAddresses,
    outputs: PolyAddresses,
    /// Every chunk it may write to.
    chunks: Vec<Chunk>,
    _alive: Arc<()>,
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.device.forget(self.number);
    }
}

/// Whether the user wants repeated work to be recorded.
const VARIABLE: &str = "HETAL_CUDA_GRAPHS";

/// The user's choice.
pub(super) fn chosen() -> crate::Result<bool> {
    match std::env::var(VARIABLE).unwrap_or_default().as_str() {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Error::Setting { variable: VARIABLE, value: other.to_owned(), choices: "on or off" }),
    }
}

impl CudaBackend {
    /// Whether repeated work is recorded and replayed, or queued kernel by kernel. Returns what was
    /// before.
    pub fn use_graphs(&self, wanted: bool) -> bool {
        self.recordings.wanted.swap(wanted, Ordering::Relaxed)
    }

    /// What became of repeated work so far.
    pub fn graphs(&self) -> Graphs {
        let Recordings { alive, kernels, replayed, passed_over, .. } = &self.recordings;
        let count = |number: &AtomicUsize| number.load(Ordering::Relaxed);
        Graphs {
            recorded: Arc::strong_count(alive) - 1,
            kernels: count(kernels),
            replayed: count(replayed),
            passed_over: count(passed_over),
            ended: self.health.of_recordings().map(ToString::to_string),
        }
    }

    /// [`Backend::repeat`]: plainly at first, recorded the second time, and replayed then and from
    /// then on.
    pub(super) fn repeated<E>(
        &self,
        routine: &CudaRoutine,
        inputs: Vec<CudaPoly>,
        work: impl Fn(Vec<CudaPoly>) -> Result<Vec<CudaPoly>, E>,
    ) -> Result<Vec<CudaPoly>, E> {
        let recordings = &self.recordings;
        let may_record = recordings.wanted.load(Ordering::Relaxed)
            && lane() == 0
            && !is_recording()
            && !self.health.is_broken()
            && self.device.can_record();
        if !may_record {
            return work(inputs);
        }
        let mut memory = routine.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Where memory was short, what recordings work in was given back to the GPU.
        if matches!(&*memory, Memory::Recorded(old) if !old.chunks.iter().all(|chunk| self.pool.has(chunk))) {
            *memory = Memory::Done;
        }
        match *memory {
            Memory::Nothing => {
                let out = work(inputs)?;
                *memory = Memory::Done;
                return Ok(out);
            }
            Memory::Done if self.health.of_recordings().is_none() => {
                if let Some(recording) = self.recorded(&inputs, &work) {
                    *memory = Memory::Recorded(recording);
                }
            }
            _ => {}
        }
        let Memory::Recorded(recording) = &*memory else { return work(inputs) };
        if let Some(out) = self.replayed(recording, &inputs) {
            recordings.replayed.fetch_add(1, Ordering::Relaxed);
            return Ok(out);
        }
        recordings.passed_over.fetch_add(1, Ordering::Relaxed);
        work(inputs)
    }

    /// Records work on polynomials like the inputs, unless memory of earlier recordings is in use.
    /// After a failure nothing is recorded any more.
    fn recorded<E>(
        &self,
        inputs: &[CudaPoly],
        work: impl Fn(Vec<CudaPoly>) -> Result<Vec<CudaPoly>, E>,
    ) -> Option<Recording> {
        let mut arena = self.recordings.arena.lock().unwrap_or_else(PoisonError::into_inner);
        arena.retain(|chunk| self.pool.has(chunk));
        let Some(reserved) = self.pool.reserve(&arena) else {
            // Another arena would cost as much memory again.
            self.recordings.passed_over.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let place = |poly: &CudaPoly| (poly.address(), poly.basis);
        let mut places: Option<(PolyAddresses, PolyAddresses)> = None;
        let number = self.device.record(&mut || {
            let inside: Vec<CudaPoly> = inputs.iter().map(|poly| self.uninit(poly.basis)).collect();
            let from = inside.iter().map(place).collect();
            places = work(inside).ok().map(|out| (from, out.iter().map(place).collect()));
        });
        let number = number.map_err(|error| self.health.end_recordings(error)).ok()?;
        let device = Arc::clone(&self.device);
        let (inputs, outputs) = places.unwrap_or_default();
        let chunks = self.pool.recorded_chunks();
        drop(reserved);
        let _alive = Arc::clone(&self.recordings.alive);
        let recording = Recording { device, number, inputs, outputs, chunks, _alive };
        let is_whole = self.health.of_recordings().is_none() && !recording.outputs.is_empty();
        if !is_whole {
            // What a part of the work took is of no use; other recordings still need theirs.
            self.pool.trim(&arena);
            return None;
        }
        arena.clone_from(&recording.chunks);
        Some(recording)
    }

    /// What the recorded work makes of the inputs, if its memory is free and there is other for
    /// what comes out.
    fn replayed(&self, recording: &Recording, inputs: &[CudaPoly]) -> Option<Vec<CudaPoly>> {
        let _one_at_a_time = self.recordings.arena.lock().unwrap_or_else(PoisonError::into_inner);
        let same_shapes = inputs.iter().map(|poly| poly.basis).eq(recording.inputs.iter().map(|&(_, basis)| basis));
        if !Arc::ptr_eq(&recording.device, &self.device) || !same_shapes {
            return None;
        }
        // Until everything is queued: a chunk that is free now is the recording's, and no place for
        // its outputs.
        let _reserved = self.pool.reserve(&recording.chunks)?;
        let output = |&(_, basis): &(u64, Basis)| {
            let buffer = Arc::new(self.pool.try_take(basis.limbs()).ok()?);
            Some(CudaPoly { basis, buffer })
        };
        let out: Vec<CudaPoly> = recording.outputs.iter().map(output).collect::<Option<_>>()?;
        for (&(to, basis), from) in recording.inputs.iter().zip(inputs) {
            self.copy_limbs((to, 0), (from.address(), 0), basis.limbs());
        }
        if !self.health.is_broken() {
            match self.device.replay(recording.number) {
                // Nothing but the recordings' own memory was written: the work can be done step by
                // step.
                Err(error) if error.lacks_memory() => return None,
                replayed => self.noted(replayed),
            };
        }
        for (&(from, basis), to) in recording.outputs.iter().zip(&out) {
            self.copy_limbs((to.address(), 0), (from, 0), basis.limbs());
        }
        Some(out)
    }
}
