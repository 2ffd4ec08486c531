//! What tenants use of what is bounded, for the operator's page.

use crate::store::state::{Quota, State};
use crate::tenants::Tenant;
use hetal_report::TenantUse;
use std::cmp::Reverse;
use std::sync::Arc;

/// The most tenants that are listed.
const MOST_LISTED: usize = 64;

/// The tenants as they are configured now, and what each may use.
pub type TenantSource = Arc<dyn Fn() -> (Vec<Tenant>, Quota) + Send + Sync>;

/// What tenants use: those who use most, and how many others there are.
#[derive(Clone, Debug, Default)]
pub struct LargestTenants {
    /// Those who use most, the largest first.
    pub listed: Vec<TenantUse>,
    /// How many others there are.
    pub more: u64,
}

/// What all tenants use. One who cannot be read is not listed: he is counted with the others.
pub fn usage(state: &dyn State, tenants: &TenantSource) -> LargestTenants {
    let (tenants, quota) = tenants();
    let mut listed: Vec<_> = tenants.iter().filter_map(|tenant| of(state, tenant, &quota)).collect();
    listed.sort_by(|a, b| Reverse(a.bytes).cmp(&Reverse(b.bytes)).then_with(|| a.name.cmp(&b.name)));
    listed.truncate(MOST_LISTED);
    let more = (tenants.len() - listed.len()) as u64;
    LargestTenants { listed, more }
}

fn of(state: &dyn State, tenant: &Tenant, quota: &Quota) -> Option<TenantUse> {
    let totals = state.tenant_totals(tenant).ok()?;
    Some(TenantUse {
        name: tenant.to_string(),
        bytes: state.uploads(tenant).ok()?.bytes,
        most_bytes: quota.bytes,
        uploads: totals.uploads,
        most_uploads: quota.uploads,
        jobs: totals.jobs,
        most_jobs: quota.kept_jobs,
    })
}
