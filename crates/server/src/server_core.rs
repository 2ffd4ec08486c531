//! What requests and workers share.

use crate::change_notifier::ChangeNotifier;
use crate::clock::Clock;
use crate::compute::param_registry::ParamRegistry;
use crate::config::Config;
use crate::jobs::required_keys::RequiredKeysCache;
use crate::monitor::metrics::Metrics;
use crate::store::blobs::Blobs;
use crate::store::state::State;
use crate::worker::give_way::GiveWay;
use std::sync::Arc;

/// The parts of a server that requests and workers share.
pub struct Core {
    /// The configuration.
    pub config: Config,
    /// The accepted parameter sets.
    pub param_sets: Arc<ParamRegistry>,
    /// The state database.
    pub state: Arc<dyn State>,
    /// The blob store.
    pub blobs: Arc<dyn Blobs>,
    /// Notified after changes.
    pub notifier: ChangeNotifier,
    /// Prometheus counters.
    pub metrics: Arc<Metrics>,
    /// Cached key requirements.
    pub required_keys: RequiredKeysCache,
    /// Which waiting job gives its worker up.
    pub give_way: GiveWay,
    /// The time of day.
    pub clock: Clock,
}
