//! `hetal uploads`: encrypted rows and key sets on the server, and the quota.

use super::jobs::Arguments;
use crate::Result;
use crate::terminal::format::bytes;
use crate::terminal::output::print;
use hetal_client::Project;
use hetal_client::rpc::{BlobKind, Error as RpcError, UploadInfo, UploadList};
use serde_json::{Value, json};

/// Arguments of `hetal uploads`.
#[derive(clap::Args, Debug)]
pub struct UploadArguments {
    /// Delete all uploads that no job uses. An interrupted training sends its uploads again.
    #[arg(long)]
    pub free: bool,
    /// The project and the server.
    #[command(flatten)]
    pub common: Arguments,
}

/// Runs the command.
pub fn run(arguments: &UploadArguments) -> Result<()> {
    let common = &arguments.common;
    let mut project = Project::open_without_lock(&common.dir)?;
    let remote = common.connection.connect(&mut project)?;
    let list = remote.uploads().map_err(hetal_client::Error::from)?;
    if !arguments.free {
        print(common.json, &value(&list), &text(&list));
        return Ok(());
    }
    let mut freed = Vec::new();
    for upload in list.uploads.iter().filter(|upload| upload.jobs == 0) {
        match remote.delete_upload(upload.name) {
            Ok(()) => freed.push(upload),
            // A job took it, or another command deleted it, since it was listed.
            Err(RpcError::Refused { .. } | RpcError::NotFound { .. }) => {}
            Err(error) => return Err(hetal_client::Error::from(error).into()),
        }
    }
    let size: u64 = freed.iter().map(|upload| upload.size).sum();
    let names: Vec<String> = freed.iter().map(|upload| upload.name.to_string()).collect();
    let said = format!("deleted on the server: {} uploads, {}", freed.len(), bytes(size));
    print(common.json, &json!({ "deleted": names, "bytes": size }), &said);
    Ok(())
}

fn kind(kind: BlobKind) -> &'static str {
    match kind {
        BlobKind::Keys => "key set",
        BlobKind::Batch => "rows",
        BlobKind::Features => "rows without labels",
        BlobKind::WeightedBatch => "rows with labels and weights",
    }
}

fn value(list: &UploadList) -> Value {
    let one = |upload: &UploadInfo| {
        json!({
            "name": upload.name.to_string(),
            "kind": kind(upload.kind),
            "bytes": upload.size,
            "complete": upload.complete,
            "jobs": upload.jobs,
        })
    };
    json!({
        "uploads": list.uploads.iter().map(one).collect::<Vec<_>>(),
        "bytes": list.bytes,
        "bytes_most": list.bytes_most,
        "uploads_most": list.uploads_most,
    })
}

/// A line for each kind of uploads, and the quota.
fn text(list: &UploadList) -> String {
    let mut text = String::new();
    for which in [BlobKind::Keys, BlobKind::Batch, BlobKind::WeightedBatch, BlobKind::Features] {
        for (is_used, use_of_it) in [(true, "used by jobs"), (false, "used by no job")] {
            let fits = |upload: &&UploadInfo| upload.kind == which && (upload.jobs > 0) == is_used;
            let some: Vec<&UploadInfo> = list.uploads.iter().filter(fits).collect();
            let size = some.iter().map(|upload| upload.size).sum();
            let incomplete = match some.iter().filter(|upload| !upload.complete).count() {
                0 => String::new(),
                count => format!(", {count} of them incomplete"),
            };
            if !some.is_empty() {
                text += &format!("{:20} {:>6} {:>10}  {use_of_it}{incomplete}\n", kind(which), some.len(), bytes(size));
            }
        }
    }
    text += &format!(
        "{} of {} uploads; {} of {} in use, results and checkpoints of jobs included\n",
        list.uploads.len(),
        list.uploads_most,
        bytes(list.bytes),
        bytes(list.bytes_most)
    );
    if list.uploads.iter().any(|upload| upload.jobs == 0) {
        text += "`hetal uploads --free` deletes uploads that no job uses\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hetal_client::rpc::BlobName;

    #[test]
    fn uploads_are_summed_by_kind_and_use() {
        let upload =
            |name, kind, size, complete, jobs| UploadInfo { name: BlobName([name; 32]), kind, size, complete, jobs };
        let uploads = vec![
            upload(1, BlobKind::Keys, 2_700_000_000, true, 1),
            upload(2, BlobKind::Batch, 1_000_000, true, 1),
            upload(3, BlobKind::Batch, 2_000_000, true, 0),
            upload(4, BlobKind::Batch, 3_000_000, false, 0),
        ];
        let mut list = UploadList { uploads, bytes: 2_750_000_000, bytes_most: 128_000_000_000, uploads_most: 10_000 };
        assert_eq!(
            text(&list),
            "key set                   1    2.70 GB  used by jobs\n\
             rows                      1     1.0 MB  used by jobs\n\
             rows                      2     5.0 MB  used by no job, 1 of them incomplete\n\
             4 of 10000 uploads; 2.75 GB of 128.00 GB in use, results and checkpoints of jobs included\n\
             `hetal uploads --free` deletes uploads that no job uses\n"
        );
        list.uploads.truncate(2);
        assert!(!text(&list).contains("--free"));
    }
}
