#![doc = include_str!("../README.md")]

mod chart;
mod markup;
mod number;
mod operator;
mod page;
mod record;
mod watch;

pub use markup::Markup;
pub use number::iso;
pub use operator::{DeviceState, Operation, TenantUse, operation};
pub use page::{STYLE, page};
pub use record::{
    CalibrationBin, Check, ClassMeasures, CurrentPhase, FORMAT, HyperParameterRecord, MeasureRecord, Outcome,
    ParameterRecord, PhaseSeconds, PreparationRecord, Record, RocCurve, ServerRecord, TrainedShape, TrainingState,
    Transfer, Unit, VERSION, Verdict, VerdictCount,
};

pub use watch::{Overview, ProjectOverview, SCRIPT, WATCH_STYLE, overview, shell, training};

/// The [`Transfer`] that sums up what the owner sent.
pub const ALL_SENT: &str = "everything sent";
