//! What computes: the CPU or a GPU.

use crate::config::{Config, Engine};
use crate::{Error, Result};
use hetal_ckks::Params;
use hetal_ckks::backend::Failure;
use hetal_cuda::{CudaBackend, Graphs};

/// What the workers compute on. It is chosen once, when the server starts: a card that fails later does not make jobs go on elsewhere
/// without a word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Numbers of the cards; none for the CPU.
    cards: Vec<usize>,
}

impl Place {
    /// What a configuration asks for, of what is there.
    pub fn find(config: &Config, params: &Params) -> Result<Self> {
        let works = |card: usize| open(card, params).map(drop);
        Self::choose(config.engine, &config.cards, hetal_cuda::cards, works)
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

/// A card with the kernels of a parameter set.
pub fn gpu(card: usize, params: &Params) -> Result<CudaBackend> {
    open(card, params).map_err(|error| Error::gpu(&error))
}

/// An outcome, with a failure of the card blamed on the card. Without a checkpoint, a lack of memory is the job's: it needs too much.
pub fn blamed<T>(health: std::result::Result<(), Failure>, outcome: Result<T>, has_checkpoint: bool) -> Result<T> {
    match (outcome, health) {
        (Ok(outcome), _) => Ok(outcome),
        (Err(error), Ok(())) => Err(error),
        (Err(Error::Fenced), _) => Err(Error::Fenced),
        (Err(_), Err(failure @ Failure::OutOfMemory { .. })) if !has_checkpoint => Err(Error::work(failure)),
        (Err(_), Err(failure)) => {
            let is_full = matches!(failure, Failure::OutOfMemory { .. });
            Err(Error::Device { reason: failure.to_string(), is_full })
        }
    }
}

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

    #[test]
    fn failures_are_blamed_on_who_can_mend_them() {
        let full = || Err(Failure::OutOfMemory { needed: 3, free: 2, total: 9 });
        let lost = || Err(Failure::Device { operation: "a copy", reason: "an illegal address".to_owned() });
        let failed = || Err::<(), _>(Error::work("a consequence"));
        assert_eq!(blamed(lost(), Ok(()), true), Ok(()));
        assert_eq!(blamed(Ok(()), failed(), true), failed());
        assert_eq!(blamed::<()>(lost(), Err(Error::Fenced), true), Err(Error::Fenced));
        let blamed_for = |failure, has_checkpoint| match blamed(failure, failed(), has_checkpoint) {
            Err(Error::Device { reason, is_full }) => (reason, is_full),
            other => panic!("{other:?}"),
        };
        assert!(matches!(blamed_for(lost(), false), (reason, false) if reason.contains("illegal")));
        assert!(matches!(blamed_for(full(), true), (_, true)));
        assert!(
            matches!(blamed(full(), failed(), false), Err(Error::Work { reason }) if reason.contains("3 bytes more"))
        );
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
}
