//! What servers that share a database agree on, beside jobs.

use super::{Millis, Upload};
use crate::Result;
use crate::store::parts::StoredPart;
use crate::tenants::Tenant;
use hetal_wire::{BlobName, JobId};

/// How long a server that receives an upload keeps it from others after its last part.
pub const HOLD_MILLIS: Millis = 5_000;

/// The right of one server to add to an upload, until another server takes it.
#[derive(Clone, Debug)]
pub struct UploadHold {
    /// The tenant.
    pub tenant: Tenant,
    /// The upload.
    pub name: BlobName,
    /// Larger than those of all earlier holds.
    pub token: u64,
    /// The name by which the blob store knows the upload, once it has begun.
    pub store_id: Option<String>,
    /// The stored parts, in order.
    pub parts: Vec<StoredPart>,
}

impl UploadHold {
    /// Bytes in parts.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }
}

/// A duty that one server at a time has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Deletes blobs that nobody references.
    CollectGarbage,
    /// Gives a worker up for a queued job.
    GiveWay,
}

impl Duty {
    /// Its stored name.
    pub fn name(self) -> &'static str {
        match self {
            Self::CollectGarbage => "garbage",
            Self::GiveWay => "give way",
        }
    }
}

/// A database that several servers use at once.
pub(crate) trait SharedState: Send + Sync {
    /// Takes the right to add to an upload. Other servers lose it. Refused while another server
    /// receives parts.
    fn hold_upload(&self, tenant: &Tenant, name: BlobName, server: &str) -> Result<UploadHold>;
    /// Records the name by which the blob store knows the upload.
    fn begin_parts(&self, hold: &UploadHold, store_id: &str) -> Result<()>;
    /// Records a part behind the others.
    fn add_part(&self, hold: &UploadHold, part: &StoredPart) -> Result<()>;
    /// Forgets all parts.
    fn drop_parts(&self, hold: &UploadHold) -> Result<()>;
    /// Fails if this hold was lost. Otherwise it lasts longer.
    fn confirm_hold(&self, hold: &UploadHold) -> Result<()>;
    /// Marks the upload as complete and forgets its parts.
    fn finish_upload(&self, hold: &UploadHold) -> Result<()>;
    /// The bytes in parts of an upload.
    fn bytes_in_parts(&self, tenant: &Tenant, name: BlobName) -> Result<u64>;
    /// Whether a server is the last that received parts of an upload, which is not complete.
    fn is_received_by(&self, tenant: &Tenant, name: BlobName, server: &str) -> Result<bool>;
    /// Makes an upload that no job uses incomplete, forgets its parts, and ends all rights to add
    /// to it. Returns the blob store's name for it.
    fn revoke_upload(&self, tenant: &Tenant, name: BlobName) -> Result<Option<String>>;
    /// Calls `delete` if there is no upload of this name, or none that needs what it deletes. No
    /// upload of the tenant begins meanwhile. Returns whether it did.
    fn delete_unneeded(
        &self,
        tenant: &Tenant,
        name: BlobName,
        is_needed: fn(&Upload) -> bool,
        delete: &mut dyn FnMut() -> Result<()>,
    ) -> Result<bool>;
    /// The uploads with parts, with the names by which the blob store knows them.
    fn uploads_in_parts(&self, tenant: &Tenant) -> Result<Vec<(BlobName, String)>>;

    /// Gives a duty to a server for a time, unless another one has it.
    fn take_duty(&self, duty: Duty, server: &str, length: Millis) -> Result<bool>;
    /// Ends a duty early, if this server has it.
    fn end_duty(&self, duty: Duty, server: &str) -> Result<()>;
    /// Records that nobody references what is at a place. Returns whether that has been so for
    /// `grace` already.
    fn record_orphan(&self, tenant: &Tenant, place: &str, grace: Millis) -> Result<bool>;
    /// Forgets the places of a tenant that are not listed: they are referenced again, or gone.
    fn forget_orphans_except(&self, tenant: &Tenant, places: &[String]) -> Result<()>;
    /// The servers that hold uploads, jobs or duties, or did so last.
    fn servers(&self) -> Result<Vec<String>>;
    /// The tenants of recorded orphans.
    fn tenants_of_orphans(&self) -> Result<Vec<Tenant>>;

    /// Jobs that have waited for a verdict for longer than `limit`, with their rounds. Servers ask
    /// every `pause`. A time in which none asked does not count.
    fn advance_deadlines(&self, limit: Millis, pause: Millis, lease: Millis) -> Result<Vec<(JobId, u32)>>;
}
