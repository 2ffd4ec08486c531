//! The test suite of states.
#![allow(clippy::unwrap_used)]

use crate::Error;
use crate::jobs::spec::{JobSpec, RowBlob, TrainingSpec};
use crate::store::state::*;
use crate::tenants::Tenant;
use hetal_learn::Verdict;
use hetal_learn::{AgreementLimits, KeyPlan, RowForm};
use hetal_testkit::TempDir;
use hetal_testkit::postgres::Postgres;
use hetal_wire::{BlobName, JobId, v1};
use v1::event::What;

pub(crate) const QUOTA: Quota = Quota { bytes: 100, uploads: 3, jobs: 3, kept_jobs: 4 };

pub(crate) fn tenant(name: &str) -> Tenant {
    name.to_owned().try_into().unwrap()
}

fn upload(n: u8, size: u64) -> Upload {
    Upload { name: BlobName([n; 32]), kind: BlobKind::Batch, size, complete: false }
}

pub(crate) fn new_job(n: u8) -> NewJob {
    let row_blob = |n| RowBlob { blob: BlobName([n; 32]), rows: 5 };
    let spec = JobSpec::Training(TrainingSpec {
        set: "full".to_owned(),
        features: 4,
        classes: 3,
        keys: BlobName([1; 32]),
        batches: vec![row_blob(2), row_blob(2)],
        validation: vec![row_blob(3)],
        agreement: AgreementLimits::default().defaults,
        form: RowForm::Slots,
        key_plan: KeyPlan::Fast,
    });
    NewJob { id: JobId([n; 16]), request: [n; 16], body: [n; 32], label: format!("job {n}"), spec }
}

fn until(until: Millis) -> LeaseTimes {
    LeaseTimes { now: 0, until }
}

pub(super) fn at_most(count: usize) -> EventLimit {
    EventLimit { count, bytes: usize::MAX }
}

pub(super) fn kinds(events: &[v1::Event]) -> Vec<(u64, &'static str)> {
    let name = |what: &Option<What>| match what {
        Some(What::Queued(_)) => "queued",
        Some(What::Started(_)) => "started",
        Some(What::Judged(_)) => "judged",
        Some(What::Failed(_)) => "failed",
        Some(What::Cancelled(_)) => "cancelled",
        _ => "other",
    };
    events.iter().map(|e| (e.sequence, name(&e.what))).collect()
}

fn uploads(state: &dyn State) {
    let (ann, bob) = (tenant("ann"), tenant("bob"));
    assert_eq!(state.upload(&ann, BlobName([1; 32])).unwrap(), None);
    assert_eq!(state.begin_upload(&ann, &upload(1, 60), &QUOTA).unwrap(), upload(1, 60));
    // The same upload again succeeds; with another size it is refused.
    assert_eq!(state.begin_upload(&ann, &upload(1, 60), &QUOTA).unwrap(), upload(1, 60));
    assert!(matches!(state.begin_upload(&ann, &upload(1, 61), &QUOTA), Err(Error::Invalid { .. })));
    assert!(matches!(state.begin_upload(&ann, &upload(2, 41), &QUOTA), Err(Error::Limit { .. })));
    assert!(matches!(state.begin_upload(&ann, &upload(2, u64::MAX >> 1), &QUOTA), Err(Error::Limit { .. })));
    state.begin_upload(&ann, &upload(2, 20), &QUOTA).unwrap();
    state.begin_upload(&ann, &upload(3, 20), &QUOTA).unwrap();
    assert!(matches!(state.begin_upload(&ann, &upload(4, 0), &QUOTA), Err(Error::Limit { .. })));
    state.complete_upload(&ann, BlobName([1; 32])).unwrap();
    assert!(state.upload(&ann, BlobName([1; 32])).unwrap().unwrap().complete);
    let listed = state.uploads(&ann).unwrap();
    assert_eq!((listed.uploads.len(), listed.bytes), (3, 100));
    let first = Upload { complete: true, ..upload(1, 60) };
    assert_eq!(listed.uploads[..2], [(first, 0), (upload(2, 20), 0)]);
    // Another tenant sees neither the blob nor its use of the quota.
    assert_eq!(state.uploads(&bob).unwrap(), UploadList::default());
    assert_eq!(state.upload(&bob, BlobName([1; 32])).unwrap(), None);
    assert_eq!(state.complete_upload(&bob, BlobName([1; 32])), Err(Error::NoBlob { name: BlobName([1; 32]) }));
    assert_eq!(state.delete_upload(&bob, BlobName([1; 32])), Err(Error::NoBlob { name: BlobName([1; 32]) }));
    state.begin_upload(&bob, &upload(1, 99), &QUOTA).unwrap();
    state.delete_upload(&bob, BlobName([1; 32])).unwrap();
    // A damaged upload is no longer complete, until it is sent again. Others are not affected.
    for name in [BlobName([1; 32]), BlobName([9; 32])] {
        state.distrust_upload(&ann, name).unwrap();
        state.distrust_upload(&bob, name).unwrap();
    }
    assert_eq!(state.upload(&ann, BlobName([1; 32])).unwrap(), Some(upload(1, 60)));
    state.complete_upload(&ann, BlobName([1; 32])).unwrap();
    // A job needs complete uploads, whatever was checked before.
    let missing = Err(Error::NoBlob { name: BlobName([2; 32]) });
    assert_eq!(state.create_job(&ann, &new_job(1), &QUOTA, 9), missing);
    complete(state, &ann, [2, 3]);
    complete(state, &bob, [1, 2, 3]);
}

/// Complete uploads.
pub(crate) fn complete<const N: usize>(state: &dyn State, tenant: &Tenant, uploads: [u8; N]) {
    for n in uploads {
        state.begin_upload(tenant, &upload(n, 20), &QUOTA).unwrap();
        state.complete_upload(tenant, BlobName([n; 32])).unwrap();
    }
}

fn jobs(state: &dyn State) {
    let (ann, bob) = (tenant("ann"), tenant("bob"));
    let first = state.create_job(&ann, &new_job(1), &QUOTA, 10).unwrap();
    assert_eq!((first.state, first.created, first.sequence), (JobState::Queued, 10, 1));
    assert_eq!(state.job(&ann, first.id).unwrap().spec, new_job(1).spec);
    assert_eq!(first.agreement, Some(AgreementLimits::default().defaults));
    assert_eq!(state.summary(&ann, first.id).unwrap(), first);
    // A repeated request returns the same job.
    let again = NewJob { id: JobId([99; 16]), ..new_job(1) };
    assert_eq!(state.create_job(&ann, &again, &QUOTA, 11).unwrap(), first);
    // The id of a request belongs to its content.
    let other = NewJob { body: [99; 32], ..again };
    assert!(matches!(state.create_job(&ann, &other, &QUOTA, 11), Err(Error::Invalid { .. })));
    state.create_job(&ann, &new_job(2), &QUOTA, 12).unwrap();
    state.create_job(&ann, &new_job(3), &QUOTA, 13).unwrap();
    assert!(matches!(state.create_job(&ann, &new_job(4), &QUOTA, 14), Err(Error::Limit { .. })));
    let ids: Vec<_> = state.jobs(&ann).unwrap().iter().map(|job| job.id.0[0]).collect();
    assert_eq!(ids, [3, 2, 1]);
    assert_eq!(kinds(&state.events(&ann, first.id, 0, at_most(10)).unwrap()), [(1, "queued")]);
    // Uploads in use cannot be deleted.
    let used: Vec<u64> = state.uploads(&ann).unwrap().uploads.iter().map(|(_, jobs)| *jobs).collect();
    assert!(used.contains(&3), "three jobs use an upload: {used:?}");
    assert!(matches!(state.delete_upload(&ann, BlobName([1; 32])), Err(Error::Precondition { .. })));
    // Other tenants do not see the job.
    let unknown = || Error::NoJob { id: first.id };
    assert_eq!(state.job(&bob, first.id), Err(unknown()));
    assert_eq!(state.events(&bob, first.id, 0, at_most(10)), Err(unknown()));
    assert_eq!(state.cancel_job(&bob, first.id, 20), Err(unknown()));
    assert_eq!(state.delete_job(&bob, first.id), Err(unknown()));
    assert_eq!(state.judge(&bob, first.id, 1, Verdict::Stop), Err(unknown()));
    assert!(state.jobs(&bob).unwrap().is_empty());
    // Cancelling a job without a worker ends it at once.
    assert!(matches!(state.delete_job(&ann, JobId([2; 16])), Err(Error::Precondition { .. })));
    assert_eq!(state.cancel_job(&ann, JobId([2; 16]), 20).unwrap().state, JobState::Cancelled);
    assert_eq!(state.cancel_job(&ann, JobId([2; 16]), 21).unwrap().sequence, 2);
    assert_eq!(kinds(&state.events(&ann, JobId([2; 16]), 1, at_most(10)).unwrap()), [(2, "cancelled")]);
    // An ended job makes room for another, until too many are stored.
    state.create_job(&ann, &new_job(4), &QUOTA, 22).unwrap();
    state.cancel_job(&ann, JobId([4; 16]), 23).unwrap();
    assert!(matches!(state.create_job(&ann, &new_job(5), &QUOTA, 24), Err(Error::Limit { .. })));
    state.delete_job(&ann, JobId([2; 16])).unwrap();
    assert_eq!(state.job(&ann, JobId([2; 16])), Err(Error::NoJob { id: JobId([2; 16]) }));
    state.delete_job(&ann, JobId([4; 16])).unwrap();
}

/// Fairness: after jobs 1 and 3 of ann, the younger job of bob comes in between.
fn claim_order(state: &dyn State) {
    let bob = tenant("bob");
    state.create_job(&bob, &new_job(11), &QUOTA, 30).unwrap();
    let claim = |now| state.claim("worker", now, now + 100).unwrap();
    let (a, b, c) = (claim(100).unwrap(), claim(100).unwrap(), claim(100).unwrap());
    assert_eq!([&a, &b, &c].map(|claim| claim.job.id.0[0]), [1, 11, 3]);
    assert_eq!((a.attempts, a.job.state), (1, JobState::Running));
    assert_eq!(claim(199), None);
    // Leases expire unless they are renewed. Then another worker gets the job, and the first is
    // fenced.
    assert!(!state.renew(&a.lease, &|| until(300)).unwrap());
    let again = claim(200).unwrap();
    assert!(again.job.id == b.job.id || again.job.id == c.job.id);
    let late = if again.job.id == b.job.id { b } else { c };
    assert!(again.lease.token > late.lease.token && again.attempts == 2);
    let change = Change { state: Some(JobState::Finished), ..Change::default() };
    assert_eq!(state.commit(&late.lease, &change, 201), Err(Error::Fenced));
    assert_eq!(state.renew(&late.lease, &|| until(900)), Err(Error::Fenced));
    // Only the uncounted attempt is forgotten.
    let progress = Some(v1::Progress { done: 1, resting: true, ..v1::Progress::default() });
    let change =
        Change { state: Some(JobState::Queued), progress, release: true, uncounted: true, ..Change::default() };
    state.commit(&again.lease, &change, 201).unwrap();
    let other = state.claim("worker", 201, 301).unwrap().unwrap();
    let again = if other.job.id == again.job.id { other } else { state.claim("worker", 201, 301).unwrap().unwrap() };
    assert_eq!((again.job.state, again.attempts), (JobState::Running, 2));
    // A dead worker loses all its leases.
    let backoffs = || state.job(&again.job.tenant, again.job.id).unwrap().progress.map(|p| (p.done, p.resting));
    assert_eq!(backoffs(), Some((1, true)));
    state.release_worker("worker").unwrap();
    assert_eq!(state.renew(&again.lease, &|| until(900)), Err(Error::Fenced));
    assert_eq!(backoffs(), Some((1, false)), "it goes on with the next");
    assert_eq!(state.renew(&a.lease, &|| until(900)), Err(Error::Fenced));
    let mut ids: Vec<_> = (0..3).map(|_| claim(202).unwrap().job.id.0[0]).collect();
    ids.sort();
    assert_eq!(ids, [1, 3, 11]);
    state.release_worker("worker").unwrap();
}

/// A job from creation through a verdict to its end.
fn life(state: &dyn State) {
    let ann = tenant("ann");
    state.cancel_job(&tenant("bob"), JobId([11; 16]), 300).unwrap();
    state.cancel_job(&ann, JobId([3; 16]), 300).unwrap();
    let claim = state.claim("worker", 300, 400).unwrap().unwrap();
    let id = claim.job.id;
    assert_eq!(id.0[0], 1);
    let commit = |lease: &Lease, change: Change| state.commit(lease, &change, 310);
    let progress = v1::Progress { done: 3, total: 7, ..v1::Progress::default() };
    commit(&claim.lease, Change { progress: Some(progress), ..Change::default() }).unwrap();
    let before = state.job(&ann, id).unwrap();
    assert_eq!((before.progress, before.checkpoint, before.state), (Some(progress), None, JobState::Running));
    assert!(matches!(state.judge(&ann, id, 1, Verdict::Stop), Err(Error::Precondition { .. })));
    assert_eq!(state.waiting(310, 400).unwrap(), []);
    let waiting = Change {
        state: Some(JobState::Waiting),
        spent: 7,
        round: Some(1),
        announced: Some(1),
        checkpoint: Some("here".to_owned()),
        event: Some(What::Started(v1::Started::default())),
        release: true,
        ..Change::default()
    };
    commit(&claim.lease, waiting).unwrap();
    assert_eq!(commit(&claim.lease, Change::default()), Err(Error::Fenced));
    let job = state.job(&ann, id).unwrap();
    assert_eq!((job.state, job.checkpoint.as_deref(), job.progress), (JobState::Waiting, Some("here"), Some(progress)));
    assert_eq!((job.spent, state.waiting(315, 400).unwrap()), (7, vec![(id, 1)]));
    assert!(state.expire(id, 2, "late", 315, 400).unwrap().is_none(), "another round");
    // Without a verdict the job cannot be claimed.
    assert_eq!(state.claim("worker", 320, 420).unwrap(), None);
    assert!(!state.has_claimable(320, 420).unwrap());
    assert!(matches!(state.judge(&ann, id, 2, Verdict::Stop), Err(Error::Precondition { .. })));
    assert_eq!(state.verdict(id, 1).unwrap(), None);
    assert!(state.judge(&ann, id, 1, Verdict::LowerRate).unwrap());
    assert!(!state.judge(&ann, id, 1, Verdict::LowerRate).unwrap(), "a repetition changes nothing");
    assert!(matches!(state.judge(&ann, id, 1, Verdict::Stop), Err(Error::Precondition { .. })));
    assert_eq!(state.verdict(id, 1).unwrap(), Some(Verdict::LowerRate));
    let unanswered = state.waiting(325, 400).unwrap();
    assert!(unanswered.is_empty() && state.expire(id, 1, "late", 325, 400).unwrap().is_none(), "it was answered");
    assert!(state.has_claimable(330, 430).unwrap());
    let claim = state.claim("worker", 330, 430).unwrap().unwrap();
    // A checkpoint was written since the last claim.
    assert_eq!((claim.job.id, claim.attempts), (id, 1));
    // A worker learns of a cancellation at its next renewal.
    assert_eq!(state.cancel_job(&ann, id, 340).unwrap().state, JobState::Running);
    assert!(state.renew(&claim.lease, &|| until(500)).unwrap());
    let failed = Change {
        state: Some(JobState::Failed),
        reason: Some("tired".to_owned()),
        damaged_upload: Some(BlobName([2; 32])),
        event: Some(What::Failed(v1::Failed { reason: "tired".to_owned() })),
        release: true,
        ..Change::default()
    };
    commit(&claim.lease, failed).unwrap();
    let job = state.job(&ann, id).unwrap();
    assert_eq!((job.state, job.reason.as_str(), job.sequence), (JobState::Failed, "tired", 3));
    // The failure of a job marks the upload that caused it, of its own tenant alone.
    let is_complete = |tenant| state.upload(tenant, BlobName([2; 32])).unwrap().unwrap().complete;
    assert!(!is_complete(&ann) && is_complete(&tenant("bob")));
    state.complete_upload(&ann, BlobName([2; 32])).unwrap();
    // Pages of events end after a number of bytes, but always have one event.
    let page = |bytes| state.events(&ann, id, 0, EventLimit { count: 10, bytes }).unwrap().len();
    assert_eq!((page(0), page(1), page(usize::MAX)), (1, 1, 3));
    let mut visited = Vec::new();
    visit_events(state, &ann, id, |event| visited.push(event.sequence)).unwrap();
    assert_eq!(visited, [1, 2, 3]);
    state.check_writable().unwrap();
    assert_eq!(kinds(&state.events(&ann, id, 1, at_most(1)).unwrap()), [(2, "started")]);
    assert_eq!(kinds(&state.events(&ann, id, 2, at_most(9)).unwrap()), [(3, "failed")]);
    assert_eq!(state.claim("worker", 999, 1000).unwrap(), None);
    assert_eq!(state.count_jobs().unwrap(), [(JobState::Failed, 1), (JobState::Cancelled, 2)]);
    state.delete_job(&ann, id).unwrap();
    state.delete_job(&ann, JobId([3; 16])).unwrap();
    state.delete_upload(&ann, BlobName([1; 32])).unwrap();
}

/// Several rounds wait for verdicts while a worker trains on. Going back forgets the verdicts on
/// those that were thrown away.
fn open_rounds(state: &dyn State) {
    let eve = tenant("eve");
    complete(state, &eve, [1, 2, 3]);
    let id = state.create_job(&eve, &new_job(77), &QUOTA, 5000).unwrap().id;
    let claim = state.claim("worker", 5000, 5100).unwrap().unwrap();
    assert_eq!(claim.job.id, id);
    let commit = |round, announced| {
        let change = Change { round: Some(round), announced: Some(announced), ..Change::default() };
        state.commit(&claim.lease, &change, 5010).unwrap();
    };
    let refused = |round| matches!(state.judge(&eve, id, round, Verdict::Stop), Err(Error::Precondition { .. }));
    assert!(refused(0) && refused(1));
    commit(1, 3);
    assert!(refused(0) && refused(4));
    for round in 1..=3 {
        state.judge(&eve, id, round, Verdict::LowerRate).unwrap();
    }
    // The worker took the first of them and went back.
    commit(2, 1);
    assert_eq!([1, 2, 3].map(|round| state.verdict(id, round).unwrap()), [Some(Verdict::LowerRate), None, None]);
    assert!(refused(2));
    commit(2, 2);
    state.judge(&eve, id, 2, Verdict::Stop).unwrap();
    let job = state.job(&eve, id).unwrap();
    assert_eq!((job.state, job.round, job.announced), (JobState::Running, 2, 2));
    let ended = Change { state: Some(JobState::Finished), release: true, ..Change::default() };
    state.commit(&claim.lease, &ended, 5020).unwrap();
    assert!(refused(1) && state.judge(&eve, id, 2, Verdict::Stop).is_ok(), "repeated after the end");
    state.delete_job(&eve, id).unwrap();
    [1, 2, 3].iter().for_each(|&n| state.delete_upload(&eve, BlobName([n; 32])).unwrap());
}

/// Clock changes, missing verdicts, and tenants who leave.
fn ends(state: &dyn State) {
    let (ann, bob) = (tenant("ann"), tenant("bob"));
    complete(state, &ann, [1, 2, 3]);
    let job = state.create_job(&ann, &new_job(21), &QUOTA, 1000).unwrap();
    let first = state.claim("worker", 1000, 1060).unwrap().unwrap();
    // After the clock is set back, a lease in the far future does not hold the job.
    let second = state.claim("worker", 10, 70).unwrap().unwrap();
    assert!(second.lease.job == job.id && second.lease.token > first.lease.token);
    // The outputs of a job count, from the same transaction on.
    let logits = vec![v1::Output { size: 35, ..v1::Output::default() }];
    let event = Some(What::Validation(v1::Validation { round: 1, logits, ..v1::Validation::default() }));
    state.commit(&second.lease, &Change { event, ..Change::default() }, 20).unwrap();
    let quota = Quota { uploads: 10, ..QUOTA };
    assert!(matches!(state.begin_upload(&ann, &upload(4, 6), &quota), Err(Error::Limit { .. })));
    state.begin_upload(&ann, &upload(4, 5), &quota).unwrap();
    state.delete_upload(&ann, BlobName([4; 32])).unwrap();
    // So does its checkpoint, until another replaces it.
    for (held, room) in [(3, 2), (1, 4)] {
        let change = Change { checkpoint: Some(String::new()), checkpoint_bytes: Some(held), ..Change::default() };
        state.commit(&second.lease, &change, 20).unwrap();
        assert!(matches!(state.begin_upload(&ann, &upload(4, room + 1), &quota), Err(Error::Limit { .. })));
        state.begin_upload(&ann, &upload(4, room), &quota).unwrap();
        state.delete_upload(&ann, BlobName([4; 32])).unwrap();
    }
    // If the end of a lease was not recorded, the lease holds until it expires.
    let waiting = Change { state: Some(JobState::Waiting), round: Some(1), ..Change::default() };
    state.commit(&second.lease, &waiting, 20).unwrap();
    assert!(state.waiting(69, 129).unwrap().is_empty() && state.expire(job.id, 1, "early", 69, 129).unwrap().is_none());
    assert_eq!(state.waiting(70, 130).unwrap(), [(job.id, 1)]);
    assert!(state.waiting(9, 69).unwrap().is_empty(), "a lease that was extended while this waited");
    assert_eq!(state.waiting(5, 35).unwrap(), [(job.id, 1)], "a clock that was set back");
    assert_eq!(state.expire(job.id, 1, "nobody answered", 70, 130).unwrap(), Some(ann.clone()));
    // The checkpoint of an ended job no longer counts.
    state.begin_upload(&ann, &upload(4, 5), &quota).unwrap();
    state.delete_upload(&ann, BlobName([4; 32])).unwrap();
    assert_eq!(state.commit(&second.lease, &Change::default(), 71), Err(Error::Fenced));
    let job = state.job(&ann, job.id).unwrap();
    assert_eq!((job.state, job.reason.as_str()), (JobState::Failed, "nobody answered"));
    assert_eq!(kinds(&state.events(&ann, job.id, 2, at_most(9)).unwrap()), [(3, "failed")]);
    assert!(matches!(state.judge(&ann, job.id, 1, Verdict::Stop), Err(Error::Precondition { .. })));
    let before = state.tenant_totals(&bob).unwrap();
    assert_eq!(state.forget_tenant(&ann).unwrap(), TenantTotals { jobs: 1, uploads: 3 });
    assert_eq!(
        (state.tenant_totals(&ann).unwrap(), state.tenant_totals(&bob).unwrap()),
        (TenantTotals::default(), before)
    );
    assert_eq!(state.job(&ann, job.id), Err(Error::NoJob { id: job.id }));
}

/// Jobs that back off stay in the queue and do not block other jobs.
fn backoffs(state: &dyn State) {
    let eve = tenant("eve");
    complete(state, &eve, [1, 2, 3]);
    let [first, second] = [31, 32].map(|n| state.create_job(&eve, &new_job(n), &QUOTA, 2000).unwrap().id);
    let claim = |now| state.claim("worker", now, now + 100).unwrap();
    let rest = |claim: &Claim, rest, now| {
        let change =
            Change { release: true, backoff: Some(rest), uncounted: true, out_of_memory: true, ..Change::default() };
        state.commit(&claim.lease, &change, now).unwrap();
    };
    let counts = |claim: &Claim| (claim.job.id, claim.attempts, claim.backoffs, claim.out_of_memory);
    let tired = claim(2000).unwrap();
    assert_eq!(counts(&tired), (first, 1, 0, 0));
    rest(&tired, 500, 2000);
    assert_eq!(state.job(&eve, first).unwrap().state, JobState::Queued, "nobody works on it");
    let other = claim(2001).unwrap();
    assert_eq!(other.job.id, second, "it comes at once");
    let done = Change { state: Some(JobState::Finished), release: true, ..Change::default() };
    state.commit(&other.lease, &done, 2001).unwrap();
    assert_eq!(claim(2499), None);
    let rested = claim(2500).unwrap();
    assert_eq!(counts(&rested), (first, 1, 1, 1));
    // After the clock is set back, a backoff in the far future does not hold the job.
    rest(&rested, MAX_BACKOFF, 3000);
    assert_eq!(claim(3000), None);
    let rested = claim(2999).unwrap();
    assert_eq!(counts(&rested), (first, 1, 2, 2));
    // A checkpoint resets the counts.
    let further = Change { checkpoint: Some("here".to_owned()), ..Change::default() };
    state.commit(&rested.lease, &further, 3001).unwrap();
    rest(&rested, 500, 3001);
    let rested = claim(3501).unwrap();
    assert_eq!(counts(&rested), (first, 1, 1, 1));
    // So does a new process, except for the count of attempts without memory.
    rest(&rested, 500, 3501);
    state.release_worker("worker").unwrap();
    let rested = claim(3502).unwrap();
    assert_eq!(counts(&rested), (first, 1, 0, 2));
    // Jobs of a dead worker are not running.
    state.release_worker("worker").unwrap();
    assert_eq!(state.job(&eve, first).unwrap().state, JobState::Queued);
    // A cancelled job does not wait for a backoff that began meanwhile.
    let rested = claim(3503).unwrap();
    assert_eq!(state.cancel_job(&eve, first, 3503).unwrap().state, JobState::Running);
    rest(&rested, 500, 3503);
    assert!(claim(3504).unwrap().job.cancel);
    state.release_worker("worker").unwrap();
    assert_eq!(state.cancel_job(&eve, first, 3505).unwrap().state, JobState::Cancelled);
    state.forget_tenant(&eve).unwrap();
}

/// Checks an empty state.
pub(super) fn check(state: &dyn State) {
    uploads(state);
    jobs(state);
    claim_order(state);
    life(state);
    ends(state);
    backoffs(state);
    open_rounds(state);
}

#[test]
fn memory_is_a_state() {
    check(&MemoryState::default());
}

#[test]
fn sqlite_is_a_state_in_memory() {
    check(&SqliteState::in_memory().unwrap());
}

#[test]
fn sqlite_is_a_state_that_lasts() {
    let dir = TempDir::new();
    let path = dir.path().join("state.sqlite");
    let state = SqliteState::open(&path).unwrap();
    uploads(&state);
    drop(state);
    let state = SqliteState::open(&path).unwrap();
    jobs(&state);
    drop(state);
    let state = SqliteState::open(&path).unwrap();
    claim_order(&state);
    drop(state);
    let state = SqliteState::open(&path).unwrap();
    life(&state);
    ends(&state);
    backoffs(&state);
}

/// An empty database in PostgreSQL, with the clock of the test.
pub(crate) fn in_postgres() -> Option<PgState> {
    let settings = PgSettings::new(&Postgres::shared()?.database(), None, None).unwrap();
    Some(PgState::with_times_of_callers(settings).unwrap())
}

#[test]
fn postgres_is_a_state() {
    if let Some(state) = in_postgres() {
        check(&state);
    }
}

/// An empty state of each kind.
fn all_kinds() -> Vec<Box<dyn State>> {
    let postgres = in_postgres().map(|state| Box::new(state) as Box<dyn State>);
    let others: [Box<dyn State>; 2] = [Box::new(MemoryState::default()), Box::new(SqliteState::in_memory().unwrap())];
    others.into_iter().chain(postgres).collect()
}

/// A tenant who deletes his ended jobs does not come first again.
#[test]
fn deleted_jobs_count_for_the_order_of_tenants() {
    for state in all_kinds() {
        let state = &*state;
        let (ann, bob) = (tenant("ann"), tenant("bob"));
        complete(state, &ann, [1, 2, 3]);
        complete(state, &bob, [1, 2, 3]);
        let serve = |owner: &Tenant, n| {
            state.create_job(owner, &new_job(n), &QUOTA, 0).unwrap();
            let claim = state.claim("worker", 1, 2).unwrap().unwrap();
            let ended = Change { state: Some(JobState::Finished), release: true, ..Change::default() };
            state.commit(&claim.lease, &ended, 1).unwrap();
        };
        serve(&bob, 1);
        serve(&ann, 2);
        state.delete_job(&ann, JobId([2; 16])).unwrap();
        state.create_job(&ann, &new_job(3), &QUOTA, 0).unwrap();
        state.create_job(&bob, &new_job(4), &QUOTA, 0).unwrap();
        assert_eq!(state.claim("worker", 1, 2).unwrap().unwrap().job.id, JobId([4; 16]));
    }
}

/// A tenant with few jobs does not wait for a tenant with many.
#[test]
fn a_busy_tenant_does_not_starve_others() {
    for state in all_kinds() {
        let state = &*state;
        let quota = Quota { jobs: 100, kept_jobs: 100, ..QUOTA };
        complete(state, &tenant("greedy"), [1, 2, 3]);
        complete(state, &tenant("modest"), [1, 2, 3]);
        for n in 0..20 {
            state.create_job(&tenant("greedy"), &new_job(n), &quota, 0).unwrap();
        }
        state.create_job(&tenant("modest"), &new_job(50), &quota, 0).unwrap();
        let mut order = Vec::new();
        for _ in 0..21 {
            let claim = state.claim("worker", 1, 2).unwrap().unwrap();
            order.push(claim.job.id.0[0]);
            let ended = Change { state: Some(JobState::Finished), release: true, ..Change::default() };
            state.commit(&claim.lease, &ended, 1).unwrap();
        }
        assert!(order.iter().position(|&n| n == 50).unwrap() <= 1, "{order:?}");
        assert_eq!(order.iter().filter(|&&n| n != 50).copied().collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    }
}
