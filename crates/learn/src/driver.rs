//! The training loop.
//!
//! [`drive`] takes a [`Session`] from its present state to its end. What surrounds the loop is a
//! [`Host`]: it computes steps on batches, stores results, and obtains verdicts. The server's host
//! reads batches from blobs and writes checkpoints; [`EngineHost`] keeps everything in memory, for
//! benchmarks and tests.
//!
//! ```text
//!             step, refresh                validate              end
//! Session ──────────────────> Host ──────────────────> Host ─────────> drive returns
//!    ^     the next model      │   a verdict, later     │
//!    └─────────────────────────┴────────────────────────┘
//! ```
//!
//! The driver asks for a verdict before every action while checks are open. It goes on without one,
//! unless the session has to wait.

use crate::batches::{self, Batches};
use crate::nesterov::StepSize;
use crate::session::{Action, CheckRequest};
use crate::trainer::{ModelState, Trainer};
use crate::{Error, Session, Verdict};
use hetal_circuits::Engine;
use std::collections::VecDeque;
use std::ops::ControlFlow;

/// One iteration that a host is asked to compute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRequest {
    /// The number of the batch.
    pub batch: usize,
    /// The learning rate and the strength of L2.
    pub size: StepSize,
    /// The range of the softmax.
    pub range: f64,
}

/// What surrounds a training: where batches come from and where results go.
pub trait Host {
    /// One ciphertext of a model.
    type Ciphertext: Clone;
    /// What can go wrong.
    type Error: From<Error>;
    /// Why the loop is left before the training ends.
    type Interruption;

    /// Whether to leave the loop; called before every action.
    fn interruption(&mut self) -> Result<Option<Self::Interruption>, Self::Error>;

    /// The model after a gradient step on one batch.
    fn step(
        &mut self,
        session: &Session<Self::Ciphertext>,
        request: StepRequest,
    ) -> Result<ModelState<Self::Ciphertext>, Self::Error>;

    /// The model with a refreshed momentum.
    fn refresh(
        &mut self,
        session: &Session<Self::Ciphertext>,
        range: f64,
    ) -> Result<ModelState<Self::Ciphertext>, Self::Error>;

    /// The session took the result of a step or of a refresh.
    fn advanced(&mut self, session: &Session<Self::Ciphertext>, action: Action) -> Result<(), Self::Error>;

    /// Computes the validation logits of the session's weights.
    fn validate(
        &mut self,
        session: &Session<Self::Ciphertext>,
        check: CheckRequest,
    ) -> Result<ControlFlow<Self::Interruption>, Self::Error>;

    /// The check is open: sends its logits to the owner.
    fn opened(&mut self, session: &Session<Self::Ciphertext>, check: CheckRequest) -> Result<(), Self::Error>;

    /// The verdict on the first open check, if the owner gave it.
    fn verdict(&mut self, session: &Session<Self::Ciphertext>) -> Result<Option<Verdict>, Self::Error>;

    /// Waits for the verdict on the first open check.
    fn await_verdict(
        &mut self,
        session: &Session<Self::Ciphertext>,
    ) -> Result<ControlFlow<Self::Interruption, Verdict>, Self::Error>;

    /// The session took a verdict.
    fn judged(&mut self, session: &Session<Self::Ciphertext>) -> Result<(), Self::Error>;
}

/// How [`drive`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended<I> {
    /// The training is complete: [`Session::kept`] goes to the owner.
    Complete,
    /// The host interrupted it. The session can be driven further.
    Interrupted(I),
}

/// Drives a session until it is complete or its host interrupts it.
pub fn drive<H: Host>(session: &mut Session<H::Ciphertext>, host: &mut H) -> Result<Ended<H::Interruption>, H::Error> {
    loop {
        if let Some(interruption) = host.interruption()? {
            return Ok(Ended::Interrupted(interruption));
        }
        if session.open() > 0
            && let Some(verdict) = host.verdict(session)?
        {
            session.judged(verdict)?;
            host.judged(session)?;
            continue;
        }
        let action = session.next_action();
        let model = match action {
            Action::Step { batch, size, range } => host.step(session, StepRequest { batch, size, range })?,
            Action::Refresh => host.refresh(session, session.range())?,
            Action::Validate(check) => {
                if let ControlFlow::Break(interruption) = host.validate(session, check)? {
                    return Ok(Ended::Interrupted(interruption));
                }
                session.opened()?;
                host.opened(session, check)?;
                continue;
            }
            Action::Await => {
                match host.await_verdict(session)? {
                    ControlFlow::Continue(verdict) => session.judged(verdict)?,
                    ControlFlow::Break(interruption) => return Ok(Ended::Interrupted(interruption)),
                }
                host.judged(session)?;
                continue;
            }
            Action::Return => return Ok(Ended::Complete),
        };
        session.stepped(model)?;
        host.advanced(session, action)?;
    }
}

/// A host in memory: an engine, the batches that it holds, and functions for the rest.
///
/// `X` is the error of its functions.
pub struct EngineHost<'a, E: Engine, B: Batches<E> + ?Sized, X> {
    engine: &'a E,
    batches: &'a B,
    trainer: Box<TrainerOfRange<'a, E>>,
    ask: Box<Ask<'a, E::Ciphertext, X>>,
    on_advance: Box<OnAdvance<'a, E::Ciphertext>>,
    /// The verdicts on the open checks, in order.
    verdicts: VecDeque<Verdict>,
    interrupted: bool,
}

/// The circuit of a range.
type TrainerOfRange<'a, E> = dyn Fn(f64) -> crate::Result<&'a Trainer<E>> + 'a;
/// The verdict on a session's weights at a check; a break interrupts the training.
type Ask<'a, C, X> = dyn FnMut(&Session<C>, CheckRequest) -> Result<ControlFlow<(), Verdict>, X> + 'a;
/// Called after every step and refresh; a break interrupts the training.
type OnAdvance<'a, C> = dyn FnMut(&Session<C>, Action) -> ControlFlow<()> + 'a;

impl<'a, E: Engine, B: Batches<E> + ?Sized, X> EngineHost<'a, E, B, X> {
    /// A host for some batches. `trainer` gives the circuit of a range, `ask` the verdict at a
    /// check.
    pub fn new(
        engine: &'a E,
        batches: &'a B,
        trainer: impl Fn(f64) -> crate::Result<&'a Trainer<E>> + 'a,
        ask: impl FnMut(&Session<E::Ciphertext>, CheckRequest) -> Result<ControlFlow<(), Verdict>, X> + 'a,
    ) -> Self {
        Self {
            engine,
            batches,
            trainer: Box::new(trainer),
            ask: Box::new(ask),
            on_advance: Box::new(|_, _| ControlFlow::Continue(())),
            verdicts: VecDeque::new(),
            interrupted: false,
        }
    }

    /// Calls a function after every step and every refresh.
    #[must_use]
    pub fn on_advance(mut self, function: impl FnMut(&Session<E::Ciphertext>, Action) -> ControlFlow<()> + 'a) -> Self {
        self.on_advance = Box::new(function);
        self
    }
}

impl<E: Engine, B: Batches<E> + ?Sized, X: From<Error>> Host for EngineHost<'_, E, B, X> {
    type Ciphertext = E::Ciphertext;
    type Error = X;
    type Interruption = ();

    fn interruption(&mut self) -> Result<Option<()>, X> {
        Ok(std::mem::take(&mut self.interrupted).then_some(()))
    }

    fn step(
        &mut self,
        session: &Session<E::Ciphertext>,
        StepRequest { batch, size, range }: StepRequest,
    ) -> Result<ModelState<E::Ciphertext>, X> {
        let trainer = (self.trainer)(range)?;
        let (geometry, rows) = (trainer.products().geometry(), session.agreement().batch);
        let pieces = batches::pieces_of(geometry, rows, batch, self.batches.count());
        let step = batches::step(self.engine, trainer, session.model(), self.batches, pieces, size, &mut |_| {});
        Ok(step?)
    }

    fn refresh(&mut self, session: &Session<E::Ciphertext>, range: f64) -> Result<ModelState<E::Ciphertext>, X> {
        Ok((self.trainer)(range)?.refresh(self.engine, session.model())?)
    }

    fn advanced(&mut self, session: &Session<E::Ciphertext>, action: Action) -> Result<(), X> {
        self.interrupted = (self.on_advance)(session, action).is_break();
        Ok(())
    }

    fn validate(&mut self, session: &Session<E::Ciphertext>, check: CheckRequest) -> Result<ControlFlow<()>, X> {
        Ok(match (self.ask)(session, check)? {
            ControlFlow::Continue(verdict) => {
                self.verdicts.push_back(verdict);
                ControlFlow::Continue(())
            }
            ControlFlow::Break(()) => ControlFlow::Break(()),
        })
    }

    fn opened(&mut self, _: &Session<E::Ciphertext>, _: CheckRequest) -> Result<(), X> {
        Ok(())
    }

    /// Verdicts are there at once.
    fn verdict(&mut self, _: &Session<E::Ciphertext>) -> Result<Option<Verdict>, X> {
        Ok(self.verdicts.pop_front())
    }

    fn await_verdict(&mut self, session: &Session<E::Ciphertext>) -> Result<ControlFlow<(), Verdict>, X> {
        Ok(self.verdict(session)?.map_or(ControlFlow::Break(()), ControlFlow::Continue))
    }

    fn judged(&mut self, _: &Session<E::Ciphertext>) -> Result<(), X> {
        Ok(())
    }
}
