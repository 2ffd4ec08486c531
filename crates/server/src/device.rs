//! What computes: the CPU or a GPU.

use crate::config::{Config, Engine};
use crate::footprint::{Footprint, Rehearsal};
use crate::sets::Sets;
use crate::state::Job;
use crate::tenants::Tenant;
use crate::work::{KeyLists, Training, Work};
use crate::{Error, Result};
use hetal_circuits::Encrypted;
use hetal_circuits::bootstrap::BsgsSplit;
use hetal_ckks::Params;
use hetal_ckks::backend::Failure;
use hetal_cuda::selftest::Ring;
use hetal_cuda::{CudaBackend, Graphs};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// What the workers compute on. It is chosen once, when the server starts: a card that fails later does not make jobs go on elsewhere
/// in the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Numbers of the cards; none for the CPU.
    cards: Vec<usize>,
}

impl Place {
    /// What a configuration asks for, of what is there and works with all parameter sets.
    pub fn find(config: &Config, sets: &Sets) -> Result<Self> {
        let seconds = config.stall_seconds;
        let works = |card: usize| {
            let sets: Vec<_> = sets.iter().cloned().collect();
            in_time(seconds, move || sets.iter().try_for_each(|params| probe(card, params)))
        };
        Self::choose(config.engine, &config.cards, || in_time(seconds, hetal_cuda::cards), works)
    }

    fn choose(
        engine: Engine,
        wanted: &[usize],
        count: impl FnOnce() -> hetal_cuda::Result<usize>,
        works: impl Fn(usize) -> hetal_cuda::Result<()>,
    ) -> Result<Self> {
        if engine == Engine::Cpu {
            return Ok(Self::default());
        }
        let none = || hetal_cuda::Error::NoGpu { reason: "the driver sees none".to_owned() };
        let all = if wanted.is_empty() { count().map(|count| (0..count).collect()) } else { Ok(wanted.to_vec()) };
        let (all, mut problem) = all.map_or_else(|error| (Vec::new(), error), |all: Vec<usize>| (all, none()));
        let mut cards = Vec::new();
        for card in all {
            match works(card) {
                Ok(()) => cards.push(card),
                // It was asked for.
                Err(error) if engine == Engine::Cuda && !wanted.is_empty() => return Err(Error::gpu(&error)),
                Err(error) => {
                    tracing::warn!(card, %error, "a GPU is not used");
                    problem = error;
                }
            }
        }
        if cards.is_empty() && engine == Engine::Cuda {
            return Err(Error::gpu(&problem));
        }
        if cards.is_empty() {
            tracing::info!(%problem, "the CPU computes");
        } else {
            tracing::info!(?cards, "GPUs compute");
        }
        Ok(Self { cards })
    }

    /// Jobs that are computed at once, unless the operator says otherwise.
    pub fn workers(&self) -> usize {
        self.cards.len().max(1)
    }

    /// The card of a worker, or none where the CPU computes. Workers beyond the cards share them.
    pub fn card_of(&self, worker: usize) -> Option<usize> {
        self.cards.get(worker.checked_rem(self.cards.len())?).copied()
    }
}

fn open(card: usize, params: &Params) -> hetal_cuda::Result<CudaBackend> {
    CudaBackend::open(card, params.log_n(), params.chain(), params.special())
}

/// Opens a card and lets it compute what the CPU knows the result of.
fn probe(card: usize, params: &Params) -> hetal_cuda::Result<()> {
    let (log_n, q, p) = (params.log_n(), params.chain(), params.special());
    hetal_cuda::selftest::probe(&open(card, params)?, &Ring { log_n, q, p, digit_starts: params.digit_starts() })
}

/// Whether a card works.
pub fn works(card: usize, params: &Params) -> Result<()> {
    probe(card, params).map_err(|error| Error::gpu(&error))
}

/// A card with the kernels of a parameter set.
pub fn gpu(card: usize, params: &Params) -> Result<CudaBackend> {
    open(card, params).map_err(|error| Error::gpu(&error))
}

/// What was said in time.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// This.
    Got(T),
    /// Nothing, and nothing will be: whoever was asked broke off.
    None,
    /// Nothing so far.
    Never,
}

/// Asks what may never answer, a card for example. Whoever no longer listens needs no answer: the thread that waits for one stays.
pub fn ask<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
    let (answer, answers) = mpsc::channel();
    std::thread::spawn(move || _ = answer.send(work()));
    match answers.recv_timeout(Duration::from_secs(seconds)) {
        Ok(answer) => Answer::Got(answer),
        Err(mpsc::RecvTimeoutError::Disconnected) => Answer::None,
        Err(mpsc::RecvTimeoutError::Timeout) => Answer::Never,
    }
}

/// What a driver says about its cards, or that it says nothing.
fn in_time<T: Send + 'static>(
    seconds: u64,
    work: impl FnOnce() -> hetal_cuda::Result<T> + Send + 'static,
) -> hetal_cuda::Result<T> {
    let silent = |reason| Err(hetal_cuda::Error::Driver { operation: "a test", reason });
    match ask(seconds, work) {
        Answer::Got(answer) => answer,
        Answer::Never => silent(format!("nothing came from the GPU for {seconds} seconds")),
        Answer::None => silent("it broke off".to_owned()),
    }
}

/// What a training may hold on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Batches that are kept prepared.
    pub kept: usize,
    /// Whether bootstraps are graphs, which take some room.
    pub graphs: bool,
}

impl Plan {
    /// The plan of an attempt: all of it for the first, less after each that lacked memory.
    fn modest(self, lacked: u32) -> Self {
        Self { kept: self.kept.checked_shr(lacked).unwrap_or(0), graphs: self.graphs && lacked == 0 }
    }

    /// Whether there is no more modest one.
    pub fn is_least(self) -> bool {
        self.kept == 0 && !self.graphs
    }
}

/// How many prepared batches of a job the card has room for beside everything else; none where the job keeps none.
/// After attempts that lacked memory it is given less.
pub fn room(
    gpu: &CudaBackend,
    params: &Arc<Params>,
    (job, lacked): (&Job, u32),
    lists: &KeyLists,
) -> Result<Option<Plan>> {
    let Work::Training(training) = &job.work else { return Ok(None) };
    let memory = gpu.memory().map_err(|error| Error::gpu(&error))?;
    let plan = plan(params, (&job.tenant, training, job.checkpoint.is_some()), lists, memory)?.modest(lacked);
    tracing::info!(job = %job.id, ?plan, "the job fits the GPU");
    if !plan.graphs {
        gpu.use_graphs(false);
    }
    Ok(Some(plan))
}

/// Rehearses a training, for so many bytes of memory free and in all.
fn plan(
    params: &Arc<Params>,
    (tenant, training, has_begun): (&Tenant, &Training, bool),
    lists: &KeyLists,
    (free, total): (usize, usize),
) -> Result<Plan> {
    let circuit = training.circuit(params)?;
    let needs = lists.find(params, (tenant, training), &circuit)?;
    let (keys, bounds, steps) = (&needs.keys[..], &needs.bounds[..], BsgsSplit::FewKeys);
    let batches = training.batches.len() + training.validation.len();
    let pieces = circuit.pieces_of(0, training.batches.len()).len();
    let mut needed = 0;
    for graphs in [true, false] {
        let rehearsal = Rehearsal { params, keys, bounds, steps, graphs, pieces };
        let trainer = |engine: &Encrypted<CudaBackend>| Ok(circuit.trainer(engine, training.agreement.range)?);
        let footprint = Footprint::rehearse(&rehearsal, trainer).map_err(Error::work)?.from_disk();
        if let Some(kept) = footprint.resident(batches, free) {
            return Ok(Plan { kept, graphs });
        }
        needed = footprint.bytes(batches, 0);
    }
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    let reason =
        format!("the job needs {:.2} GiB of GPU memory, {:.2} of {:.2} are free", gib(needed), gib(free), gib(total));
    // Others may give theirs back, but not more than there is. A job that has begun may have come from a larger card, and go back.
    match needed > total && !has_begun {
        true => Err(Error::Work { reason }),
        false => Err(Error::Device { reason, is_full: true }),
    }
}

/// An outcome, with a failure of the card blamed on the card. A lack of memory is the job's where the card is full of it (`held` bytes
/// of memory were its own) and it may not go on, neither elsewhere, from a checkpoint, nor here, with a more modest plan.
pub fn blamed<T>(
    health: std::result::Result<(), Failure>,
    outcome: Result<T>,
    held: usize,
    may_go_on: bool,
) -> Result<T> {
    match (outcome, health) {
        (Ok(outcome), _) => Ok(outcome),
        (Err(error), Ok(())) => Err(error),
        (Err(Error::Fenced), _) => Err(Error::Fenced),
        (Err(_), Err(failure @ Failure::OutOfMemory { needed, total, .. }))
            if !may_go_on && held.saturating_add(needed) > total - total / NEARLY =>
        {
            Err(Error::work(failure))
        }
        (Err(_), Err(failure)) => {
            let is_full = matches!(failure, Failure::OutOfMemory { .. });
            Err(Error::Device { reason: failure.to_string(), is_full })
        }
    }
}

/// The driver has one part in so many for itself, at most.
const NEARLY: usize = 16;

/// Tells the log how bootstraps were queued, and why not as graphs.
pub fn tell(gpu: &CudaBackend) {
    let Graphs { recorded, replayed, passed_over, ended, .. } = gpu.graphs();
    if let Some(reason) = ended {
        tracing::warn!(
            reason,
            replayed,
            "bootstraps are no longer recorded as graphs: the rest was queued kernel by kernel"
        );
    } else if passed_over > 0 {
        tracing::warn!(
            recorded,
            replayed,
            passed_over,
            "GPU memory was short: some bootstraps were queued kernel by kernel"
        );
    } else if recorded > 0 {
        tracing::info!(recorded, replayed, "bootstraps were replayed as graphs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Part;
    use hetal_learn::{Limits, Wishes};
    use hetal_wire::BlobName;

    #[test]
    fn failures_are_blamed_on_who_can_mend_them() {
        let full = || Err(Failure::OutOfMemory { needed: 30, free: 20, total: 160 });
        let lost = || Err(Failure::Device { operation: "a copy", reason: "an illegal address".to_owned() });
        let failed = || Err::<(), _>(Error::work("a consequence"));
        assert_eq!(blamed(lost(), Ok(()), 0, true), Ok(()));
        assert_eq!(blamed(Ok(()), failed(), 0, true), failed());
        assert_eq!(blamed::<()>(lost(), Err(Error::Fenced), 0, true), Err(Error::Fenced));
        let device = |failure, held, may_go_on| match blamed(failure, failed(), held, may_go_on) {
            Err(Error::Device { reason, is_full }) => (reason, is_full),
            other => panic!("{other:?}"),
        };
        assert!(matches!(device(lost(), 150, false), (reason, false) if reason.contains("illegal")));
        assert!(device(full(), 150, true).1, "it began, perhaps on a larger card, or has a more modest plan");
        assert!(device(full(), 120, false).1, "others hold the rest");
        let too_large = blamed(full(), failed(), 121, false);
        assert!(matches!(too_large, Err(Error::Work { reason }) if reason.contains("30 bytes more")));
    }

    #[test]
    fn a_card_that_never_answers_is_not_waited_for() {
        assert_eq!(ask(60, || 7), Answer::Got(7));
        assert_eq!(ask(60, || panic!("a test that breaks off")), Answer::<u8>::None);
        let never = || {
            std::thread::sleep(Duration::from_secs(60));
            7
        };
        assert_eq!(ask(0, never), Answer::Never);
        // At the start, too: it is told from one that is not there.
        let said = in_time(0, move || Ok(never())).unwrap_err().to_string();
        assert!(said.contains("nothing came from the GPU for 0 seconds"), "{said}");
        assert!(in_time(60, || Ok(7)).is_ok_and(|answer| answer == 7));
    }

    #[test]
    fn cards_are_those_that_work() {
        let broken = |card: usize| match card {
            1 => Err(hetal_cuda::Error::Driver { operation: "a copy", reason: "lost".to_owned() }),
            _ => Ok(()),
        };
        let chosen = |engine, wanted: &[usize], count| Place::choose(engine, wanted, || count, broken);
        let cards = |cards: &[usize]| Ok(Place { cards: cards.to_vec() });
        let no_driver = || Err(hetal_cuda::Error::NoGpu { reason: "no driver".to_owned() });
        assert_eq!(chosen(Engine::Cpu, &[0], Ok(4)), cards(&[]));
        for engine in [Engine::Auto, Engine::Cuda] {
            assert_eq!(chosen(engine, &[], Ok(4)), cards(&[0, 2, 3]));
            assert_eq!(chosen(engine, &[3, 0], Ok(4)), cards(&[3, 0]));
        }
        assert_eq!(chosen(Engine::Auto, &[1, 2], Ok(4)), cards(&[2]));
        assert!(
            matches!(chosen(Engine::Cuda, &[1, 2], Ok(4)), Err(Error::Device { reason, .. }) if reason.contains("lost"))
        );
        assert_eq!(chosen(Engine::Auto, &[1], Ok(4)), cards(&[]));
        assert_eq!(chosen(Engine::Auto, &[], no_driver()), cards(&[]));
        let refused = chosen(Engine::Cuda, &[], no_driver());
        assert!(matches!(refused, Err(Error::Device { reason, is_full: false }) if reason.contains("no driver")));
        assert!(
            matches!(chosen(Engine::Cuda, &[], Ok(0)), Err(Error::Device { reason, .. }) if reason.contains("no GPU"))
        );
    }

    #[test]
    fn every_worker_has_a_card() {
        let (cpu, two) = (Place::default(), Place { cards: vec![4, 6] });
        assert_eq!((cpu.workers(), cpu.card_of(0), cpu.card_of(3)), (1, None, None));
        assert_eq!((two.workers(), two.card_of(0), two.card_of(1), two.card_of(2)), (2, Some(4), Some(6), Some(4)));
    }

    #[test]
    fn a_training_is_planned_before_it_begins() {
        let params = Arc::new(Params::named("insecure-toy11").unwrap());
        let part = |rows| Part { blob: BlobName([7; 32]), rows };
        let training = Training {
            set: params.name().to_owned(),
            features: 12,
            classes: 3,
            keys: BlobName([1; 32]),
            batches: vec![part(64); 5],
            validation: vec![part(64); 2],
            agreement: Limits::default().agree(&Wishes { batch: Some(64), ..Wishes::default() }).unwrap(),
        };
        let (lists, ann) = (KeyLists::default(), Tenant::try_from("ann".to_owned()).unwrap());
        // Of each tenant his own, whoever asked before.
        let bob = Tenant::try_from("bob".to_owned()).unwrap();
        let circuit = training.circuit(&params).unwrap();
        let needs = [&ann, &ann, &bob].map(|tenant| lists.find(&params, (tenant, &training), &circuit).unwrap());
        assert!(Arc::ptr_eq(&needs[0], &needs[1]) && !Arc::ptr_eq(&needs[0], &needs[2]));
        let plan = |has_begun, memory| plan(&params, (&ann, &training, has_begun), &lists, memory);
        let all = Plan { kept: 7, graphs: true };
        assert_eq!(plan(false, (1 << 40, 1 << 40)), Ok(all));
        assert_eq!((all.modest(0), all.modest(1)), (all, Plan { kept: 3, graphs: false }));
        assert_eq!(all.modest(70), Plan { kept: 0, graphs: false });
        assert_eq!([0, 1, 2, 3].map(|lacked| all.modest(lacked).is_least()), [false, false, false, true]);
        // The least that it is done in, with and without graphs, and what is in between.
        let least = |wanted: &dyn Fn(&Result<Plan>) -> bool| {
            let (mut below, mut enough) = (0, 1usize << 36);
            while enough - below > 1 << 16 {
                let middle = below.midpoint(enough);
                *(if wanted(&plan(true, (middle, 1 << 40))) { &mut enough } else { &mut below }) = middle;
            }
            enough
        };
        let (any, graphs, whole) =
            (least(&|p| p.is_ok()), least(&|p| p.as_ref().is_ok_and(|p| p.graphs)), least(&|p| *p == Ok(all)));
        assert!(any < graphs && graphs < whole, "{any} {graphs} {whole}");
        assert_eq!(plan(false, (any, any)).map(|plan| plan.graphs), Ok(false));
        assert_eq!(plan(false, (graphs, graphs)), Ok(Plan { kept: 0, graphs: true }));
        let (little, much) = (any / 2, 2 * any);
        let refused = |has_begun, memory| plan(has_begun, memory).unwrap_err();
        assert!(
            matches!(refused(false, (little, little)), Error::Work { reason } if reason.contains("GiB of GPU memory"))
        );
        assert!(matches!(refused(true, (little, little)), Error::Device { is_full: true, .. }), "it may go back");
        assert!(matches!(refused(false, (little, much)), Error::Device { is_full: true, .. }), "others hold the rest");
    }
}
