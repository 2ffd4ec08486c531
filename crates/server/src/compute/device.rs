//! Compute devices: the CPU and GPUs.

use crate::compute::memory_estimate::{DryRun, MemoryEstimate};
use crate::compute::param_registry::ParamRegistry;
use crate::config::{Config, EngineChoice};
use crate::jobs::required_keys::{EstimateOf, RequiredKeysCache};
use crate::jobs::spec::{JobSpec, TrainingSpec};
use crate::store::state::Job;
use crate::tenants::Tenant;
use crate::{Error, Result};
use hetal_circuits::Encrypted;
use hetal_ckks::Params;
use hetal_ckks::backend::Failure;
use hetal_cuda::selftest::RingPrimes;
use hetal_cuda::{CudaBackend, Graphs};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// About how long a lift takes at `full`, 0.92 of a bootstrap: 3.3 s on two CPU cores, 13.6 ms on
/// an H200 (docs/benchmarks.md).
const CPU_LIFT_SECONDS: f64 = 3.0;
pub const GPU_LIFT_SECONDS: f64 = 0.0125;

/// A device that a worker computes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeDevice {
    /// The CPU.
    Cpu,
    /// A GPU, by its number.
    Gpu(usize),
}

impl ComputeDevice {
    /// Its name in metrics.
    pub fn label(self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Gpu(card) => format!("gpu {card}"),
        }
    }
}

/// The devices that workers compute on. They are chosen once, when the server starts. If a GPU
/// fails later, its jobs do not move to another device in the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// GPU numbers; empty for the CPU.
    cards: Vec<usize>,
}

impl Devices {
    /// Selects the devices that the configuration asks for. A GPU must work with every accepted
    /// parameter set.
    pub fn detect(config: &Config, param_sets: &ParamRegistry) -> Result<Self> {
        let seconds = config.stall_seconds;
        let works = |card: usize| {
            let param_sets: Vec<_> = param_sets.iter().cloned().collect();
            driver_call(seconds, move || param_sets.iter().try_for_each(|params| probe(card, params)))
        };
        Self::choose(config.engine, &config.cards, || driver_call(seconds, hetal_cuda::cards), works)
    }

    /// About how long a lift takes. Clients compare it with the time that an upload saves.
    pub fn lift_seconds(&self) -> f64 {
        if self.cards.is_empty() { CPU_LIFT_SECONDS } else { GPU_LIFT_SECONDS }
    }

    fn choose(
        engine: EngineChoice,
        wanted: &[usize],
        count: impl FnOnce() -> hetal_cuda::Result<usize>,
        works: impl Fn(usize) -> hetal_cuda::Result<()>,
    ) -> Result<Self> {
        if engine == EngineChoice::Cpu {
            return Ok(Self::default());
        }
        let none = || hetal_cuda::Error::NoGpu { reason: "the driver reports none".to_owned() };
        let all = if wanted.is_empty() { count().map(|count| (0..count).collect()) } else { Ok(wanted.to_vec()) };
        let (all, mut problem) = all.map_or_else(|error| (Vec::new(), error), |all: Vec<usize>| (all, none()));
        let mut cards = Vec::new();
        for card in all {
            match works(card) {
                Ok(()) => cards.push(card),
                // The operator asked for this GPU by number.
                Err(error) if engine == EngineChoice::Cuda && !wanted.is_empty() => return Err(Error::gpu(&error)),
                Err(error) => {
                    tracing::warn!(card, %error, "skipped a GPU that does not work");
                    problem = error;
                }
            }
        }
        if cards.is_empty() && engine == EngineChoice::Cuda {
            return Err(Error::gpu(&problem));
        }
        if cards.is_empty() {
            tracing::info!(%problem, "computing on the CPU");
        } else {
            tracing::info!(?cards, "computing on GPUs");
        }
        Ok(Self { cards })
    }

    /// These GPUs, whether there are any or not.
    #[cfg(test)]
    pub fn of_cards(cards: Vec<usize>) -> Self {
        Self { cards }
    }

    /// The GPUs, by their numbers; none on the CPU.
    pub fn cards(&self) -> &[usize] {
        &self.cards
    }

    /// All devices.
    pub fn all(&self) -> Vec<ComputeDevice> {
        (0..self.workers()).map(|worker| self.of_worker(worker)).collect()
    }

    /// The default number of workers: one for each GPU, or one for the CPU.
    pub fn workers(&self) -> usize {
        self.cards.len().max(1)
    }

    /// The device of a worker. If there are more workers than GPUs, they share them.
    pub fn of_worker(&self, worker: usize) -> ComputeDevice {
        match worker.checked_rem(self.cards.len()) {
            Some(index) => ComputeDevice::Gpu(self.cards[index]),
            None => ComputeDevice::Cpu,
        }
    }
}

/// The number of GPUs that the driver sees. None is opened.
pub fn count_cards(seconds: u64) -> Result<usize> {
    driver_call(seconds, hetal_cuda::cards).map_err(|error| Error::gpu(&error))
}

fn open(card: usize, params: &Params) -> hetal_cuda::Result<CudaBackend> {
    CudaBackend::open(card, params.log_n(), params.chain(), params.special())
}

/// Opens a GPU and compares a short computation with the CPU's result.
fn probe(card: usize, params: &Params) -> hetal_cuda::Result<()> {
    let (log_n, q, p) = (params.log_n(), params.chain(), params.special());
    hetal_cuda::selftest::probe(&open(card, params)?, &RingPrimes { log_n, q, p, digit_starts: params.digit_starts() })
}

/// Checks that a GPU works.
pub fn check_gpu(card: usize, params: &Params) -> Result<()> {
    probe(card, params).map_err(|error| Error::gpu(&error))
}

/// Opens a GPU with the kernels of a parameter set.
pub fn open_gpu(card: usize, params: &Params) -> Result<CudaBackend> {
    open(card, params).map_err(|error| Error::gpu(&error))
}

/// The result of a call with a time limit.
#[derive(Debug, PartialEq, Eq)]
pub enum CallResult<T> {
    /// The call returned.
    Done(T),
    /// The call panicked.
    Panicked,
    /// The call did not return in time.
    TimedOut,
}

/// Runs a call that may never return, such as a driver call, in its own thread. After a timeout
/// that thread is abandoned.
pub fn run_with_timeout<T: Send + 'static>(seconds: u64, work: impl FnOnce() -> T + Send + 'static) -> CallResult<T> {
    let (answer, answers) = mpsc::channel();
    std::thread::spawn(move || _ = answer.send(work()));
    match answers.recv_timeout(Duration::from_secs(seconds)) {
        Ok(answer) => CallResult::Done(answer),
        Err(mpsc::RecvTimeoutError::Disconnected) => CallResult::Panicked,
        Err(mpsc::RecvTimeoutError::Timeout) => CallResult::TimedOut,
    }
}

/// Runs a driver call with a time limit.
fn driver_call<T: Send + 'static>(
    seconds: u64,
    work: impl FnOnce() -> hetal_cuda::Result<T> + Send + 'static,
) -> hetal_cuda::Result<T> {
    let silent = |reason| Err(hetal_cuda::Error::Driver { operation: "a test", reason });
    match run_with_timeout(seconds, work) {
        CallResult::Done(answer) => answer,
        CallResult::TimedOut => silent(format!("no response from the GPU for {seconds} seconds")),
        CallResult::Panicked => silent("the call panicked".to_owned()),
    }
}

/// What a training may keep on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The number of batches that stay prepared.
    pub kept: usize,
    /// Whether bootstraps are recorded as CUDA graphs, which need some memory.
    pub graphs: bool,
}

impl MemoryPlan {
    /// Reduces the plan after attempts that ran out of memory.
    fn reduced(self, out_of_memory: u32) -> Self {
        Self { kept: self.kept.checked_shr(out_of_memory).unwrap_or(0), graphs: self.graphs && out_of_memory == 0 }
    }

    /// Whether the plan cannot be reduced further.
    pub fn is_minimal(self) -> bool {
        self.kept == 0 && !self.graphs
    }
}

/// Plans the GPU memory of a training; `None` for a classification. After attempts that ran out of
/// memory the plan is smaller.
pub fn plan_memory(
    gpu: &CudaBackend,
    params: &Arc<Params>,
    job: &Job,
    out_of_memory: u32,
    cache: &RequiredKeysCache,
) -> Result<Option<MemoryPlan>> {
    let JobSpec::Training(training) = &job.spec else { return Ok(None) };
    let (free, total) = gpu.memory().map_err(|error| Error::gpu(&error))?;
    let memory = GpuMemory { free, total };
    let has_checkpoint = job.checkpoint.is_some();
    let request = PlanRequest { tenant: &job.tenant, training, has_checkpoint };
    let plan = plan(params, &request, cache, memory)?.reduced(out_of_memory);
    tracing::info!(job = %job.id, ?plan, "planned GPU memory");
    if !plan.graphs {
        gpu.use_graphs(false);
    }
    Ok(Some(plan))
}

/// Bytes of GPU memory.
#[derive(Clone, Copy)]
struct GpuMemory {
    free: usize,
    total: usize,
}

/// The training to plan.
struct PlanRequest<'a> {
    tenant: &'a Tenant,
    training: &'a TrainingSpec,
    has_checkpoint: bool,
}

/// Estimates a training by dry runs, with and without CUDA graphs, and returns the largest plan
/// that fits the free memory.
fn plan(
    params: &Arc<Params>,
    request: &PlanRequest<'_>,
    cache: &RequiredKeysCache,
    memory: GpuMemory,
) -> Result<MemoryPlan> {
    let &PlanRequest { tenant, training, has_checkpoint } = request;
    let GpuMemory { free, total } = memory;
    let circuit = training.circuit(params)?;
    let required = cache.find(params, tenant, training, &circuit)?;
    let (keys, bounds, key_plan) = (&required.keys[..], &required.bounds, training.key_plan);
    let batches = training.batches.len() + training.validation.len();
    let pieces = circuit.pieces_of(0, training.batches.len()).len();
    let mut needed = 0;
    for graphs in [true, false] {
        let decays = training.agreement.alpha != 0.0;
        let dry_run = DryRun { params, keys, bounds, key_plan, graphs, pieces, decays };
        let trainer = |engine: &Encrypted<CudaBackend>| Ok(circuit.trainer(engine, training.agreement.range)?);
        let dry_run = || MemoryEstimate::dry_run(&dry_run, trainer).map_err(Error::failed);
        let estimate = required.estimate(EstimateOf { graphs, pieces }, dry_run)?.from_disk();
        if let Some(kept) = estimate.resident(batches, free) {
            return Ok(MemoryPlan { kept, graphs });
        }
        needed = estimate.bytes(batches, 0);
    }
    let gib = |bytes: usize| bytes as f64 / (1u64 << 30) as f64;
    let reason = format!(
        "the job needs {:.2} GiB of GPU memory, but {:.2} of {:.2} GiB are free",
        gib(needed),
        gib(free),
        gib(total)
    );
    // Other processes may free their memory, but the card does not grow. A job with a checkpoint
    // may have come from a larger card and may return to it.
    match needed > total && !has_checkpoint {
        true => Err(Error::Failed { reason }),
        false => Err(Error::Device { reason, is_full: true }),
    }
}

/// Attributes a failed attempt to the device or to the job.
///
/// Running out of memory is the job's failure only if the job itself filled the card (`held` bytes)
/// and cannot continue, neither from a checkpoint on another card nor with a smaller plan.
pub fn attribute_failure<T>(
    health: std::result::Result<(), Failure>,
    outcome: Result<T>,
    held: usize,
    can_continue: bool,
) -> Result<T> {
    match (outcome, health) {
        (Ok(outcome), _) => Ok(outcome),
        (Err(error), Ok(())) => Err(error),
        (Err(Error::Fenced), _) => Err(Error::Fenced),
        (Err(_), Err(failure @ Failure::OutOfMemory { needed, total, .. }))
            if !can_continue && held.saturating_add(needed) > total - total / DRIVER_SHARE =>
        {
            Err(Error::failed(failure))
        }
        (Err(_), Err(failure)) => {
            let is_full = matches!(failure, Failure::OutOfMemory { .. });
            Err(Error::Device { reason: failure.to_string(), is_full })
        }
    }
}

/// The driver reserves at most one part in this many for itself.
const DRIVER_SHARE: usize = 16;

/// Logs how bootstraps were queued, and why they were not recorded as graphs.
pub fn log_graphs(gpu: &CudaBackend) {
    let Graphs { recorded, replayed, passed_over, ended, .. } = gpu.graphs();
    if let Some(reason) = ended {
        tracing::warn!(
            reason,
            replayed,
            "bootstraps could no longer be recorded as graphs and were queued kernel by kernel"
        );
    } else if passed_over > 0 {
        tracing::warn!(recorded, replayed, passed_over, "low GPU memory: some bootstraps were queued kernel by kernel");
    } else if recorded > 0 {
        tracing::info!(recorded, replayed, "bootstraps were replayed as graphs");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::spec::RowBlob;
    use hetal_learn::{AgreementLimits, KeyPlan, RowForm, Wishes};
    use hetal_wire::BlobName;

    #[test]
    fn failures_are_blamed_on_who_can_mend_them() {
        let full = || Err(Failure::OutOfMemory { needed: 30, free: 20, total: 160 });
        let lost = || Err(Failure::Device { operation: "a copy", reason: "an illegal address".to_owned() });
        let failed = || Err::<(), _>(Error::failed("a consequence"));
        assert_eq!(attribute_failure(lost(), Ok(()), 0, true), Ok(()));
        assert_eq!(attribute_failure(Ok(()), failed(), 0, true), failed());
        assert_eq!(attribute_failure::<()>(lost(), Err(Error::Fenced), 0, true), Err(Error::Fenced));
        let device = |failure, held, can_continue| match attribute_failure(failure, failed(), held, can_continue) {
            Err(Error::Device { reason, is_full }) => (reason, is_full),
            other => panic!("{other:?}"),
        };
        assert!(matches!(device(lost(), 150, false), (reason, false) if reason.contains("illegal")));
        assert!(device(full(), 150, true).1, "it began, perhaps on a larger card, or has a more modest plan");
        assert!(device(full(), 120, false).1, "others hold the rest");
        let too_large = attribute_failure(full(), failed(), 121, false);
        assert!(matches!(too_large, Err(Error::Failed { reason }) if reason.contains("30 bytes more")));
    }

    #[test]
    fn a_card_that_never_answers_is_not_waited_for() {
        assert_eq!(run_with_timeout(60, || 7), CallResult::Done(7));
        assert_eq!(run_with_timeout(60, || panic!("a test that breaks off")), CallResult::<u8>::Panicked);
        let never = || {
            std::thread::sleep(Duration::from_secs(60));
            7
        };
        assert_eq!(run_with_timeout(0, never), CallResult::TimedOut);
        // At startup, a hung GPU is distinguished from a missing one.
        let message = driver_call(0, move || Ok(never())).unwrap_err().to_string();
        assert!(message.contains("no response from the GPU for 0 seconds"), "{message}");
        assert!(driver_call(60, || Ok(7)).is_ok_and(|answer| answer == 7));
    }

    #[test]
    fn cards_are_those_that_work() {
        let broken = |card: usize| match card {
            1 => Err(hetal_cuda::Error::Driver { operation: "a copy", reason: "lost".to_owned() }),
            _ => Ok(()),
        };
        let chosen = |engine, wanted: &[usize], count| Devices::choose(engine, wanted, || count, broken);
        let cards = |cards: &[usize]| Ok(Devices { cards: cards.to_vec() });
        let no_driver = || Err(hetal_cuda::Error::NoGpu { reason: "no driver".to_owned() });
        assert_eq!(chosen(EngineChoice::Cpu, &[0], Ok(4)), cards(&[]));
        for engine in [EngineChoice::Auto, EngineChoice::Cuda] {
            assert_eq!(chosen(engine, &[], Ok(4)), cards(&[0, 2, 3]));
            assert_eq!(chosen(engine, &[3, 0], Ok(4)), cards(&[3, 0]));
        }
        assert_eq!(chosen(EngineChoice::Auto, &[1, 2], Ok(4)), cards(&[2]));
        assert!(
            matches!(chosen(EngineChoice::Cuda, &[1, 2], Ok(4)), Err(Error::Device { reason, .. }) if reason.contains("lost"))
        );
        assert_eq!(chosen(EngineChoice::Auto, &[1], Ok(4)), cards(&[]));
        assert_eq!(chosen(EngineChoice::Auto, &[], no_driver()), cards(&[]));
        let refused = chosen(EngineChoice::Cuda, &[], no_driver());
        assert!(matches!(refused, Err(Error::Device { reason, is_full: false }) if reason.contains("no driver")));
        assert!(
            matches!(chosen(EngineChoice::Cuda, &[], Ok(0)), Err(Error::Device { reason, .. }) if reason.contains("no GPU"))
        );
    }

    #[test]
    fn every_worker_has_a_card() {
        let (cpu, two) = (Devices::default(), Devices { cards: vec![4, 6] });
        assert_eq!((cpu.workers(), cpu.of_worker(0), cpu.of_worker(3)), (1, ComputeDevice::Cpu, ComputeDevice::Cpu));
        assert_eq!(
            (two.workers(), two.of_worker(0), two.of_worker(1), two.of_worker(2)),
            (2, ComputeDevice::Gpu(4), ComputeDevice::Gpu(6), ComputeDevice::Gpu(4))
        );
    }

    #[test]
    fn a_training_is_planned_before_it_begins() {
        let params = Arc::new(Params::named("insecure-toy11").unwrap());
        let row_blob = |rows| RowBlob { blob: BlobName([7; 32]), rows };
        let training = TrainingSpec {
            set: params.name().to_owned(),
            features: 12,
            classes: 3,
            keys: BlobName([1; 32]),
            batches: vec![row_blob(64); 5],
            validation: vec![row_blob(64); 2],
            agreement: AgreementLimits::default().agree(&Wishes { batch: Some(64), ..Wishes::default() }).unwrap(),
            form: RowForm::Slots,
            key_plan: KeyPlan::Fast,
        };
        let (lists, ann) = (RequiredKeysCache::default(), Tenant::try_from("ann".to_owned()).unwrap());
        // The cache keeps entries of tenants apart.
        let bob = Tenant::try_from("bob".to_owned()).unwrap();
        let circuit = training.circuit(&params).unwrap();
        let needs = [&ann, &ann, &bob].map(|tenant| lists.find(&params, tenant, &training, &circuit).unwrap());
        assert!(Arc::ptr_eq(&needs[0], &needs[1]) && !Arc::ptr_eq(&needs[0], &needs[2]));
        let plan = |has_checkpoint, (free, total)| {
            let request = PlanRequest { tenant: &ann, training: &training, has_checkpoint };
            plan(&params, &request, &lists, GpuMemory { free, total })
        };
        let all = MemoryPlan { kept: 7, graphs: true };
        assert_eq!(plan(false, (1 << 40, 1 << 40)), Ok(all));
        assert_eq!((all.reduced(0), all.reduced(1)), (all, MemoryPlan { kept: 3, graphs: false }));
        assert_eq!(all.reduced(70), MemoryPlan { kept: 0, graphs: false });
        assert_eq!(
            [0, 1, 2, 3].map(|out_of_memory| all.reduced(out_of_memory).is_minimal()),
            [false, false, false, true]
        );
        // The least memory for any plan, for a plan with graphs, and for the complete plan.
        let least = |wanted: &dyn Fn(&Result<MemoryPlan>) -> bool| {
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
        assert_eq!(plan(false, (graphs, graphs)), Ok(MemoryPlan { kept: 0, graphs: true }));
        let (little, much) = (any / 2, 2 * any);
        let refused = |has_checkpoint, memory| plan(has_checkpoint, memory).unwrap_err();
        assert!(
            matches!(refused(false, (little, little)), Error::Failed { reason } if reason.contains("GiB of GPU memory"))
        );
        assert!(matches!(refused(true, (little, little)), Error::Device { is_full: true, .. }), "it may go back");
        assert!(matches!(refused(false, (little, much)), Error::Device { is_full: true, .. }), "others hold the rest");
    }
}
