//! What several servers do to the same upload at once, and what a full disk does to it.
#![allow(clippy::unwrap_used)]

use super::hooked_disk::HookedDisk;
use super::shared::*;
use super::state::tenant;
use crate::Error;
use crate::config::{Config, StateConfig};
use crate::store::blobs::{BlobKey, Blobs, LocalBlobs, Namespace, name_of, read};
use crate::store::disk::OsDisk;
use crate::store::parts::STORED_PART_BYTES;
use crate::store::shared_gc;
use crate::store::uploads::{UploadProgress, Uploads};
use crate::tenants::erasure::forget_tenant;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, SystemTime};

/// A server whose blobs are on this disk.
fn server_on(site: &Site, name: &str, disk: &Arc<HookedDisk>) -> Uploads {
    let root = site.dir.path().join("blobs");
    std::fs::create_dir_all(&root).unwrap();
    let blobs: Arc<dyn Blobs> = Arc::new(LocalBlobs::on(Arc::<HookedDisk>::clone(disk), &root).unwrap());
    site.uploads(name, blobs, Arc::new(OsDisk))
}

/// An upload is deleted while another server makes a blob of its parts: before the blob is in its
/// place, or while the deletion goes on. Nothing is left.
#[test]
fn no_blob_of_a_deleted_upload_is_left() {
    for deletion_ends_first in [true, false] {
        let Some(site) = Site::new() else { return };
        let [disk, staging] = [(); 2].map(|()| Arc::new(HookedDisk::new()));
        let first = server_on(&site, "first", &disk);
        let second = site.uploads("second", site.blobs("second"), Arc::<HookedDisk>::clone(&staging));
        let (bytes, name) = (content(5), name_of(&content(5)));
        let (mut writer, _) = resume(&first, &bytes);
        send(&first, &mut writer, &bytes).unwrap();
        let ((reached, is_reached), (go_on, may_go_on)) = (channel(), channel::<()>());
        if !deletion_ends_first {
            // The second server has deleted the blob, and not yet the row.
            staging.before("remove", "second/ann", move || {
                reached.send(()).unwrap();
                may_go_on.recv().unwrap();
            });
        }
        let (begun, deletes) = channel();
        disk.before("rename", "/uploads/", move || {
            let deleting = std::thread::spawn(move || second.delete(&tenant("ann"), name).unwrap());
            match deletion_ends_first {
                true => deleting.join().unwrap(),
                false => {
                    is_reached.recv().unwrap();
                    begun.send(deleting).unwrap();
                }
            }
        });
        let refused = finish(&first, writer).unwrap_err();
        assert!(matches!(refused, Error::Busy { .. }), "{refused}");
        if !deletion_ends_first {
            go_on.send(()).unwrap();
            deletes.recv().unwrap().join().unwrap();
        }
        assert_eq!((site.files(), &*site.query("SELECT COUNT(*) FROM uploads")), (0, "0"), "{deletion_ends_first}");
    }
}

/// The same bytes are deleted, sent again and complete while another server makes a blob of the
/// parts of before. They stay.
#[test]
fn a_blob_that_was_sent_again_stays() {
    let Some(site) = Site::new() else { return };
    let disk = Arc::new(HookedDisk::new());
    let (first, second, bytes) = (server_on(&site, "first", &disk), site.server("second"), content(6));
    let (mut writer, _) = resume(&first, &bytes);
    send(&first, &mut writer, &bytes).unwrap();
    let again = bytes.clone();
    disk.before("rename", "/uploads/", move || {
        second.delete(&tenant("ann"), name_of(&again)).unwrap();
        let (mut writer, held) = resume(&second, &again);
        assert_eq!(held, 0);
        send(&second, &mut writer, &again).unwrap();
        finish(&second, writer).unwrap();
    });
    finish(&first, writer).unwrap_err();
    assert!(begin(&first, &bytes).complete);
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
    assert!(read(&*first.blobs, &key, 1 << 30).unwrap() == bytes);
}

/// A server that lost an upload while it joined the parts does not store the blob.
#[test]
fn who_lost_an_upload_stores_no_blob() {
    let Some(site) = Site::new() else { return };
    let (first, bytes) = (site.server("first"), content(7));
    let (mut writer, _) = resume(&first, &bytes);
    send(&first, &mut writer, &bytes).unwrap();
    site.query("UPDATE uploads SET token = token + 1");
    let refused = finish(&first, writer).unwrap_err();
    assert!(matches!(refused, Error::Busy { .. }), "{refused}");
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(&bytes));
    assert_eq!(first.blobs.len(&key).unwrap(), None);
    let (writer, held) = resume(&first, &bytes);
    assert_eq!(held, bytes.len() as u64, "the parts are still there");
    finish(&first, writer).unwrap();
}

/// Parts and the blob that is made of them need twice the space. On a full disk the client hears
/// so, and the upload goes on when there is space again.
#[test]
fn a_full_disk_refuses_an_upload_in_parts() {
    let Some(site) = Site::new() else { return };
    let disk = Arc::new(HookedDisk::new());
    let (server, bytes, size) = (server_on(&site, "first", &disk), content(8), content(8).len() as u64);
    let is_limit = |error: &Error| matches!(error, Error::Limit { message } if message.contains("disk space"));
    let scratch = || std::fs::read_dir(site.dir.path().join("blobs/scratch")).unwrap().count();
    disk.set_capacity(2 * size - 1);
    assert!(is_limit(&server.begin(&tenant("ann"), &wanted(&bytes), &LARGE).unwrap_err()));
    disk.set_capacity(2 * size);
    let (mut writer, _) = resume(&server, &bytes);
    send(&server, &mut writer, &bytes[..1000]).unwrap();
    disk.set_full(true);
    assert!(is_limit(&send(&server, &mut writer, &bytes[1000..]).unwrap_err()));
    disk.set_full(false);
    drop(writer);
    let (mut writer, held) = resume(&server, &bytes);
    assert_eq!(held, STORED_PART_BYTES, "the whole part was kept");
    send(&server, &mut writer, &bytes[held as usize..]).unwrap();
    // Others used the space meanwhile.
    disk.set_capacity(2 * size - 1);
    assert!(is_limit(&finish(&server, writer).unwrap_err()));
    disk.set_capacity(2 * size);
    disk.set_full(true);
    assert!(is_limit(&finish(&server, resume(&server, &bytes).0).unwrap_err()));
    assert_eq!(scratch(), 0);
    disk.set_full(false);
    finish(&server, resume(&server, &bytes).0).unwrap();
    assert!(begin(&server, &bytes).complete);
}

/// A client begins an upload whose blob is about to be deleted as garbage: it is not told that the
/// upload is complete, or the blob stays.
#[test]
fn garbage_that_is_wanted_again_stays() {
    let Some(site) = Site::new() else { return };
    let (server, ann, bytes) = (site.server("first"), tenant("ann"), content(9));
    let key = BlobKey::new(&ann, Namespace::Uploads, name_of(&bytes));
    let collect = |blobs: &dyn Blobs| shared_gc::collect(&*site.database(), blobs, shared_gc::GRACE).unwrap();
    let put = || {
        server.blobs.put(&key, &bytes).unwrap();
        assert_eq!(collect(&*server.blobs), 0);
        site.query("UPDATE orphans SET since = since - 86400000");
    };
    // The row of the upload comes after the collection has looked for it.
    put();
    let row = format!("INSERT INTO uploads VALUES ('ann', '\\x{}', 0, {}, TRUE)", name_of(&bytes), bytes.len());
    site.query(&format!(
        "CREATE FUNCTION wanted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {row}; RETURN NEW; END $$;
         CREATE TRIGGER wanted AFTER UPDATE ON orphans FOR EACH ROW EXECUTE FUNCTION wanted()"
    ));
    assert_eq!(collect(&*server.blobs), 0);
    assert!(server.blobs.len(&key).unwrap().is_some() && begin(&server, &bytes).complete);
    site.query("DROP TRIGGER wanted ON orphans");
    server.delete(&ann, name_of(&bytes)).unwrap();
    // The upload begins while the blob is being deleted.
    put();
    let (disk, again) = (Arc::new(HookedDisk::new()), bytes.clone());
    let hooked = server_on(&site, "second", &disk);
    let (begun, begins) = channel();
    disk.before("remove", "/uploads/", move || {
        begun.send(std::thread::spawn(move || begin(&server, &again))).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    });
    assert_eq!(collect(&*hooked.blobs), 1);
    assert_eq!(begins.recv().unwrap().join().unwrap(), UploadProgress { received: 0, complete: false });
}

/// Makes a file or a folder look as old as this.
fn age(path: &Path, hours: u64) {
    let time = SystemTime::now() - Duration::from_secs(3600 * hours);
    std::fs::File::open(path).unwrap().set_modified(time).unwrap();
}

/// Scratch folders of servers that are gone go after a day. Servers renew the mark of the blobs
/// once a minute, and so change theirs.
#[test]
fn scratch_folders_of_lost_servers_go() {
    let Some(site) = Site::new() else { return };
    let (database, blobs, root) = (site.database(), site.blobs("first"), site.dir.path().join("blobs"));
    for (server, of_folder, of_file) in [("gone", 30, 25), ("writes", 30, 1), ("renews", 1, 30), ("first", 30, 30)] {
        let folder = root.join(format!("scratch-{server}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("7"), b"half a blob").unwrap();
        age(&folder.join("7"), of_file);
        age(&folder, of_folder);
    }
    assert_eq!(shared_gc::collect(&*database, &*blobs, shared_gc::GRACE).unwrap(), 1);
    let left = |server: &str| root.join(format!("scratch-{server}/7")).exists();
    assert_eq!(["gone", "writes", "renews", "first"].map(left), [false, true, true, true]);
    assert!(!root.join("scratch-gone").exists());
    // A server that was only suspended makes its folder again.
    let resumed = site.blobs("gone");
    std::fs::remove_dir(root.join("scratch-gone")).unwrap();
    let key = BlobKey::new(&tenant("ann"), Namespace::Uploads, name_of(b"hello"));
    resumed.put(&key, b"hello").unwrap();
    assert_eq!(read(&*blobs, &key, 5).unwrap(), b"hello");
}

/// What is staged here of uploads that ended or went on elsewhere goes, and nothing else does.
#[test]
fn staged_tails_do_not_pile_up() {
    let Some(site) = Site::new() else { return };
    let (first, second, ann) = (site.server("first"), site.server("second"), tenant("ann"));
    let contents = [10, 11, 12, 13].map(content);
    let [deleted, moved, completed, own] = &contents;
    let receive = |bytes: &[u8]| {
        let (mut writer, _) = resume(&first, bytes);
        send(&first, &mut writer, &bytes[..1000]).unwrap();
        writer
    };
    for bytes in [deleted, moved, completed] {
        drop(receive(bytes));
    }
    let writer = receive(own);
    assert_eq!((first.collect_staged().unwrap(), first.staging.files().unwrap().len()), (0, 4));
    site.query("UPDATE uploads SET held_until = 0");
    second.delete(&ann, name_of(deleted)).unwrap();
    drop(resume(&second, moved));
    let (mut there, held) = resume(&second, completed);
    assert_eq!(held, 0);
    send(&second, &mut there, completed).unwrap();
    finish(&second, there).unwrap();
    assert_eq!(first.collect_staged().unwrap(), 3);
    assert_eq!(first.staging.files().unwrap(), [(ann.clone(), name_of(own))]);
    assert_eq!(first.shared.as_ref().unwrap().tails(), 1);
    drop(writer);
    assert_eq!((first.collect_staged().unwrap(), resume(&first, own).1), (0, 1000));
    // After a restart nobody knows where a rest begins.
    let again = site.server("first");
    assert_eq!((again.collect_staged().unwrap(), again.staging.files().unwrap().len()), (1, 0));
    assert!(!site.dir.path().join("first/ann").exists(), "no name of a tenant stays");
}

/// An erasure does not search the folders of other servers, and says so. It is repeated with each,
/// or the servers delete what they have when they run.
#[test]
fn an_erasure_names_the_folders_of_other_servers() {
    let Some(site) = Site::new() else { return };
    let (ann, root) = (tenant("ann"), site.dir.path());
    let config = |name: &str| {
        let state = StateConfig { url: Some(site.url.clone()), ..StateConfig::default() };
        Config { folder: root.join(name), blobs: Some(root.join("blobs")), state, ..Config::default() }
    };
    ["first", "second", "third"].iter().for_each(|name| std::fs::create_dir(root.join(name)).unwrap());
    let [second, third] =
        ["second", "third"].map(|name| site.uploads(&format!("{name}/staging"), site.blobs(name), Arc::new(OsDisk)));
    for server in [&second, &third] {
        let bytes = content(14);
        site.query("UPDATE uploads SET held_until = 0");
        let (mut writer, held) = resume(server, &bytes);
        send(server, &mut writer, &bytes[held as usize..][..STORED_PART_BYTES as usize + 1000]).unwrap();
    }
    std::fs::create_dir(root.join("blobs/scratch-killed")).unwrap();
    std::fs::write(root.join("blobs/scratch-killed/7"), b"half a blob").unwrap();
    let staged = |name: &str| root.join(name).join("staging/ann").exists();
    let gone = forget_tenant(&config("first"), &ann, false).unwrap();
    assert!(gone.found_in.is_empty() && gone.uploads == 1, "{gone:?}");
    let scratch = root.join("blobs/scratch-killed").display().to_string();
    assert_eq!(gone.not_searched, ["the folder of server third/staging".to_owned(), scratch.clone()]);
    assert!(staged("second") && staged("third"));
    let gone = forget_tenant(&config("second"), &ann, false).unwrap();
    assert!(gone.partial_uploads == 1 && gone.not_searched == [scratch] && !staged("second"), "{gone:?}");
    assert_eq!(third.collect_staged().unwrap(), 1);
    assert!(!staged("third"));
}
