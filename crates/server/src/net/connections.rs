//! All open connections: their limits, and which one is closed when there are too many.
//!
//! Unauthenticated connections may use a quarter of all places, and a tenant at most half. Above a
//! limit on unauthenticated connections, the oldest from the busiest address is closed, so a flood
//! from one address only evicts itself. If all places are taken, an unauthenticated connection is
//! closed first, then an idle one: of the tenant with the most connections, the one that has been
//! idle for longest. A connection with a running request is never closed for a newcomer. If all are
//! busy, the newcomer is refused.

use crate::tenants::{Fingerprint, Tenant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Requests with unknown credentials after which a connection is closed.
const MAX_REFUSALS: u32 = 8;
/// The time after which one such request is forgiven. Requests with valid credentials forgive none.
const REFUSAL_LIFETIME: Duration = Duration::from_secs(60);

/// Limits on the number of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// All connections.
    pub total: usize,
    /// Connections of one tenant; never more than half of all.
    pub per_tenant: usize,
    /// Unauthenticated connections from one address.
    pub preauth_per_address: usize,
}

/// All open connections of a server.
pub struct Connections {
    limits: ConnectionLimits,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// In order of arrival.
    by_age: BTreeMap<u64, OpenConnection>,
}

/// An open connection. Dropping the sender closes it.
struct OpenConnection {
    address: IpAddr,
    _close: oneshot::Sender<()>,
    /// The tenants that used it, with their credentials. Empty before authentication.
    tenants: BTreeMap<Tenant, Fingerprint>,
    refusals: Refusals,
    active_requests: usize,
    opened: Instant,
    /// The end of its last request, or its beginning.
    idle_since: Instant,
}

/// The requests of a connection with unknown credentials, as a leaky bucket: each is forgiven after
/// a while.
struct Refusals {
    /// When all of them are forgiven.
    until: Instant,
}

impl Refusals {
    /// Counts a refusal at the time `now`. Returns whether there are too many.
    fn add(&mut self, now: Instant) -> bool {
        self.until = self.until.max(now) + REFUSAL_LIFETIME;
        self.until - now > REFUSAL_LIFETIME * (MAX_REFUSALS - 1)
    }
}

impl Open {
    fn preauth(&self) -> impl Iterator<Item = (u64, IpAddr)> {
        self.by_age.iter().filter(|(_, open)| open.tenants.is_empty()).map(|(number, open)| (*number, open.address))
    }

    /// The oldest unauthenticated connection from the busiest address.
    fn preauth_candidate(&self) -> Option<u64> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.preauth().for_each(|(_, address)| *counts.entry(address).or_default() += 1);
        let highest = counts.values().copied().max()?;
        self.preauth().find(|(_, address)| counts[address] == highest).map(|(number, _)| number)
    }

    /// Of the tenants with idle connections, takes the one with the most connections, and of his
    /// idle connections the one that has been idle for longest.
    fn idle_candidate(&self) -> Option<u64> {
        let mut counts: HashMap<&Tenant, usize> = HashMap::new();
        self.by_age.values().flat_map(|open| open.tenants.keys()).for_each(|t| *counts.entry(t).or_default() += 1);
        let idle = self.by_age.iter().filter(|(_, open)| open.active_requests == 0);
        let most = |open: &OpenConnection| open.tenants.keys().map(|tenant| counts[tenant]).max();
        idle.min_by_key(|(_, open)| (Reverse(most(open)), open.idle_since)).map(|(number, _)| *number)
    }

    fn connections_of(&self, tenant: &Tenant) -> usize {
        self.by_age.values().filter(|open| open.tenants.contains_key(tenant)).count()
    }

    /// Closes a connection, if there is one.
    fn close(&mut self, number: Option<u64>) {
        if let Some(number) = number {
            self.by_age.remove(&number);
        }
    }
}

impl Connections {
    /// Creates the registry.
    pub fn new(limits: ConnectionLimits) -> Self {
        let per_tenant = limits.per_tenant.min(limits.total / 2).max(1);
        Self { limits: ConnectionLimits { per_tenant, ..limits }, open: Arc::default() }
    }

    /// The most connections of one tenant.
    pub fn per_tenant(&self) -> usize {
        self.limits.per_tenant
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection, and closes another if a limit is reached. The receiver completes
    /// when the new connection must close. Returns `None` if all places are taken by connections
    /// with running requests.
    pub fn register(&self, address: IpAddr) -> Option<(ConnectionSlot, oneshot::Receiver<()>)> {
        let (close, closed) = oneshot::channel();
        let mut open = self.lock();
        if open.preauth().filter(|(_, other)| *other == address).count() >= self.limits.preauth_per_address {
            let oldest = open.preauth().find(|(_, other)| *other == address).map(|(number, _)| number);
            open.close(oldest);
        }
        if open.preauth().count() >= (self.limits.total / 4).max(1) {
            let candidate = open.preauth_candidate();
            open.close(candidate);
        }
        if open.by_age.len() >= self.limits.total {
            let candidate = open.preauth_candidate().or_else(|| open.idle_candidate())?;
            open.close(Some(candidate));
        }
        let (number, now) = (open.next, Instant::now());
        open.next += 1;
        let connection = OpenConnection {
            address,
            _close: close,
            tenants: BTreeMap::new(),
            refusals: Refusals { until: now },
            active_requests: 0,
            opened: now,
            idle_since: now,
        };
        open.by_age.insert(number, connection);
        let per_tenant = self.limits.per_tenant;
        Some((ConnectionSlot { number, per_tenant, open: Arc::clone(&self.open) }, closed))
    }

    /// Closes authenticated connections that have been idle for that long. Returns their number.
    pub fn close_idle(&self, idle: Duration) -> usize {
        self.close_where(|open| {
            !open.tenants.is_empty() && open.active_requests == 0 && open.idle_since.elapsed() >= idle
        })
    }

    /// Closes connections that are older than `age`. Returns their number.
    pub fn close_old(&self, age: Duration) -> usize {
        self.close_where(|open| open.opened.elapsed() >= age)
    }

    /// Closes connections that were authenticated with credentials that are no longer valid.
    /// Returns their number.
    pub fn close_revoked(&self, is_valid: impl Fn(&Tenant, Fingerprint) -> bool) -> usize {
        self.close_where(|open| open.tenants.iter().any(|(tenant, shown)| !is_valid(tenant, *shown)))
    }

    fn close_where(&self, is_closed: impl Fn(&OpenConnection) -> bool) -> usize {
        let mut open = self.lock();
        let before = open.by_age.len();
        open.by_age.retain(|_, connection| !is_closed(connection));
        before - open.by_age.len()
    }
}

/// The place of one connection. It is free again when this is dropped.
pub struct ConnectionSlot {
    number: u64,
    per_tenant: usize,
    open: Arc<Mutex<Open>>,
}

impl ConnectionSlot {
    /// Calls `change` with the connection, unless it was closed.
    fn with<T>(&self, change: impl FnOnce(&mut OpenConnection) -> T) -> Option<T> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.by_age.get_mut(&self.number).map(change)
    }

    /// Counts the connection as one of the tenant's. Returns false if the tenant has too many.
    pub fn admit(&self, tenant: &Tenant, credential: Fingerprint) -> bool {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.by_age.get(&self.number).is_some_and(|open| open.tenants.contains_key(tenant));
        if !known && open.connections_of(tenant) >= self.per_tenant {
            return false;
        }
        if let Some(connection) = open.by_age.get_mut(&self.number) {
            connection.tenants.insert(tenant.clone(), credential);
        }
        true
    }

    /// Counts a request with unknown credentials. Too many close the connection, also one that was
    /// authenticated before.
    pub fn count_refusal(&self) {
        self.count_refusal_at(Instant::now());
    }

    fn count_refusal_at(&self, now: Instant) {
        if self.with(|open| open.refusals.add(now)) == Some(true) {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).close(Some(self.number));
        }
    }

    /// Counts a running request, until the result and all its clones are dropped.
    pub fn begin_request(self: &Arc<Self>) -> ActiveRequest {
        self.with(|open| open.active_requests += 1);
        ActiveRequest(Arc::new(RequestCount(Arc::clone(self))))
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).by_age.remove(&self.number);
    }
}

/// A request in progress. Its connection is not idle.
#[derive(Clone)]
pub struct ActiveRequest(#[allow(dead_code)] Arc<RequestCount>);

struct RequestCount(Arc<ConnectionSlot>);

impl Drop for RequestCount {
    fn drop(&mut self) {
        self.0.with(|open| {
            open.active_requests -= 1;
            open.idle_since = Instant::now();
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const LIMITS: ConnectionLimits = ConnectionLimits { total: 8, per_tenant: 8, preauth_per_address: 8 };

    type Registered = (Arc<ConnectionSlot>, oneshot::Receiver<()>);

    fn register(connections: &Connections, address: IpAddr) -> Registered {
        let (slot, closed) = connections.register(address).unwrap();
        (Arc::new(slot), closed)
    }

    fn authenticated(connections: &Connections, name: &str) -> Registered {
        let registered = register(connections, HERE);
        assert!(registered.0.admit(&tenant(name), credential(name)), "{name} has too many");
        registered
    }

    fn tenant(name: &str) -> Tenant {
        name.to_owned().try_into().unwrap()
    }

    fn credential(name: &str) -> Fingerprint {
        Fingerprint::of(name.as_bytes())
    }

    fn stays(registered: &mut Registered) -> bool {
        registered.1.try_recv() == Err(TryRecvError::Empty)
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_evicted() {
        let connections = Connections::new(LIMITS);
        let [mut first, mut second, mut third] = [0; 3].map(|_| register(&connections, HERE));
        assert!(!stays(&mut first) && stays(&mut second) && stays(&mut third));
        // A connection that authenticates or closes makes room. An evicted one has already made it.
        drop(first);
        drop(second);
        let _fourth = register(&connections, HERE);
        assert!(stays(&mut third));
        assert_eq!(connections.lock().by_age.len(), 2);
    }

    #[test]
    fn a_flood_from_one_address_evicts_itself() {
        let connections = Connections::new(ConnectionLimits { total: 16, ..LIMITS });
        let mut elsewhere = register(&connections, IpAddr::from([192, 0, 2, 7]));
        let flood: Vec<_> = (0..1000).map(|_| register(&connections, HERE)).collect();
        assert!(stays(&mut elsewhere), "the oldest of all stays");
        assert_eq!(connections.lock().by_age.len(), 4);
        drop(flood);
        assert_eq!(connections.lock().by_age.len(), 1);
    }

    /// Silent connections do not lock out newcomers from the same address.
    #[test]
    fn a_newcomer_evicts_the_oldest_of_his_address() {
        let connections = Connections::new(ConnectionLimits { total: 100, preauth_per_address: 2, ..LIMITS });
        let mut elsewhere = register(&connections, IpAddr::from([192, 0, 2, 7]));
        let [mut first, mut second, mut third] = [0; 3].map(|_| register(&connections, HERE));
        assert!(!stays(&mut first) && stays(&mut second) && stays(&mut third) && stays(&mut elsewhere));
    }

    #[test]
    fn a_tenant_has_a_share() {
        let connections = Connections::new(LIMITS);
        let held: Vec<_> = (0..4).map(|_| authenticated(&connections, "ann")).collect();
        // Half of all, although `per_tenant` says more.
        let (slot, _) = register(&connections, HERE);
        assert!(!slot.admit(&tenant("ann"), credential("ann")) && slot.admit(&tenant("bob"), credential("bob")));
        // Another request on the same connection needs no further place.
        assert!(held[0].0.admit(&tenant("ann"), credential("ann")));
        drop(held);
        assert!(slot.admit(&tenant("ann"), credential("ann")));
    }

    /// Tenants who take all places with idle connections keep nobody out.
    #[test]
    fn a_newcomer_finds_a_place_in_a_full_house() {
        let connections = Connections::new(LIMITS);
        let mut ann: Vec<_> = (0..4).map(|_| authenticated(&connections, "ann")).collect();
        let mut others = ["bob", "carol", "dave", "eve"].map(|name| authenticated(&connections, name));
        let _request = ann[0].0.begin_request();
        let mut newcomer = register(&connections, HERE);
        assert!(stays(&mut newcomer) && others.iter_mut().all(stays));
        assert!(stays(&mut ann[0]), "it has a request");
        assert_eq!(ann.iter_mut().filter_map(|c| (!stays(c)).then_some(())).count(), 1);
        // The next newcomer replaces the first one.
        let mut next = register(&connections, HERE);
        assert!(!stays(&mut newcomer) && stays(&mut next) && others.iter_mut().all(stays));
    }

    /// A connection with a running request is never closed for a newcomer, who may be anybody.
    #[test]
    fn busy_connections_are_not_closed_for_a_newcomer() {
        let connections = Connections::new(LIMITS);
        let mut ann: Vec<_> = (0..4).map(|_| authenticated(&connections, "ann")).collect();
        let mut others = ["bob", "carol", "dave", "eve"].map(|name| authenticated(&connections, name));
        let requests: Vec<_> = ann.iter().chain(&others[..3]).map(|(slot, _)| slot.begin_request()).collect();
        // Eve's only connection is idle, although others have more.
        let mut newcomer = register(&connections, HERE);
        assert!(stays(&mut newcomer) && !stays(&mut others[3]));
        assert!(newcomer.0.admit(&tenant("eve"), credential("eve")));
        let busy = newcomer.0.begin_request();
        assert!(connections.register(HERE).is_none(), "all are busy");
        assert!(stays(&mut newcomer) && ann.iter_mut().chain(&mut others[..3]).all(stays));
        // A request that ends makes room.
        drop(busy);
        let _next = register(&connections, HERE);
        assert!(!stays(&mut newcomer));
        drop(requests);
    }

    #[test]
    fn idle_connections_are_closed() {
        let connections = Connections::new(LIMITS);
        let (mut idle, mut busy) = (authenticated(&connections, "ann"), authenticated(&connections, "ann"));
        let request = busy.0.begin_request();
        let stream = request.clone();
        assert_eq!(connections.close_idle(Duration::from_secs(3600)), 0);
        assert_eq!(connections.close_idle(Duration::ZERO), 1);
        assert!(!stays(&mut idle) && stays(&mut busy));
        assert_eq!(connections.close_old(Duration::from_secs(3600)), 0);
        drop(request);
        assert_eq!(connections.close_idle(Duration::ZERO), 0, "its stream is open");
        drop(stream);
        assert_eq!(connections.close_idle(Duration::ZERO), 1);
        // Age counts, whatever happens on the connection.
        let mut old = authenticated(&connections, "ann");
        let _request = old.0.begin_request();
        assert_eq!(connections.close_old(Duration::ZERO), 1);
        assert!(!stays(&mut old));
    }

    #[test]
    fn revoked_and_refused_connections_are_closed() {
        let connections = Connections::new(LIMITS);
        let [mut ann, mut bob, mut eve] = ["ann", "bob", "eve"].map(|name| authenticated(&connections, name));
        assert_eq!(
            connections.close_revoked(|tenant, shown| shown == credential("bob") || tenant.as_str() == "eve"),
            1
        );
        assert!(!stays(&mut ann) && stays(&mut bob) && stays(&mut eve));
        // A connection that was authenticated once has no more refusals than any other.
        (1..MAX_REFUSALS).for_each(|_| eve.0.count_refusal());
        assert!(stays(&mut eve));
        eve.0.count_refusal();
        assert!(!stays(&mut eve));
    }

    /// Right tokens between wrong ones do not make up for them. Time does.
    #[test]
    fn right_tokens_do_not_make_up_for_wrong_ones() {
        let connections = Connections::new(LIMITS);
        let [mut guesses, mut errs] = ["ann", "bob"].map(|name| authenticated(&connections, name));
        let start = Instant::now();
        for _ in 1..MAX_REFUSALS {
            guesses.0.count_refusal_at(start);
        }
        assert!(guesses.0.admit(&tenant("ann"), credential("ann")) && stays(&mut guesses));
        guesses.0.count_refusal_at(start);
        assert!(!stays(&mut guesses));
        for n in 0..10 * MAX_REFUSALS {
            errs.0.count_refusal_at(start + REFUSAL_LIFETIME * n);
        }
        assert!(stays(&mut errs), "one now and then is forgiven");
    }
}
