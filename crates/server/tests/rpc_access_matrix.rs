//! Every request of the protocol, made by every client that is not allowed to.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{RawClient, TOKEN, TestClient, address, config, owner, tenant};
use hetal_client::rpc::{BlobKind, EventKind, Remote, RowBlob, TrainingRequest};
use hetal_server::tenants::TenantConfig;
use hetal_server::{Config, start};
use hetal_testkit::TempDir;
use hetal_wire::v1;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::time::Instant;
use tonic::{Code, Status};

const REQUESTS: [&str; 13] = [
    "Hello",
    "BeginUpload",
    "Upload",
    "DeleteUpload",
    "ListUploads",
    "CreateJob",
    "ListJobs",
    "GetJob",
    "CancelJob",
    "DeleteJob",
    "Watch",
    "Judge",
    "Download",
];

/// The subjects of requests.
#[derive(Clone)]
struct Target {
    job: Vec<u8>,
    upload: Vec<u8>,
    output: Vec<u8>,
    training: v1::Training,
}

impl Target {
    /// A subject of the same form that never existed.
    fn never(&self) -> Self {
        let other = |name: &[u8]| name.iter().map(|b| b ^ 0x55).collect::<Vec<_>>();
        let mut training = self.training.clone();
        training.keys = other(&training.keys).into();
        for rows in training.batches.iter_mut().chain(&mut training.validation) {
            rows.blob = other(&rows.blob).into();
        }
        Self { job: other(&self.job), upload: other(&self.upload), output: other(&self.output), training }
    }

    /// A message without the names in it.
    fn anonymous(&self, text: &str) -> String {
        let hex = |name: &[u8]| name.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let batch = self.training.batches.first().map(|rows| hex(&rows.blob)).unwrap_or_default();
        [hex(&self.job), hex(&self.upload), hex(&self.output), batch]
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(name.as_str(), "NAME"))
    }
}

fn message(training: &TrainingRequest) -> v1::Training {
    let rows = |batch: &RowBlob| v1::Rows { blob: batch.blob.to_vec().into(), rows: batch.rows as u32 };
    v1::Training {
        set: training.set.to_vec().into(),
        features: training.features as u32,
        classes: training.classes as u32,
        keys: training.keys.to_vec().into(),
        batches: training.batches.iter().map(rows).collect(),
        validation: training.validation.iter().map(rows).collect(),
        wishes: None,
        weighted: training.weighted,
        form: v1::RowForm::Coefficients.into(),
        key_plan: v1::KeyPlan::Fast.into(),
    }
}

/// Makes a request, and returns the first response as text.
async fn make(rpc: &mut RawClient, request: &str, target: &Target) -> Result<String, Status> {
    let Target { job, upload, output, training } = target.clone();
    let named = v1::JobRequest { id: job.clone().into() };
    match request {
        "Hello" => {
            let version = hetal_wire::VERSION;
            let hello = v1::HelloRequest { oldest: version, newest: version, program: String::new() };
            rpc.hello(hello).await.map(|_| "offer".to_owned())
        }
        "BeginUpload" => {
            let kind = v1::BlobKind::Batch.into();
            let begin = v1::BeginUploadRequest { name: upload.into(), kind, size: 1000 };
            rpc.begin_upload(begin).await.map(|r| format!("{:?}", r.into_inner()))
        }
        "Upload" => {
            let part = v1::UploadPart { name: upload.into(), offset: 0, data: vec![7; 10].into() };
            rpc.upload(tokio_stream::iter([part])).await.map(|r| format!("{:?}", r.into_inner()))
        }
        "DeleteUpload" => {
            rpc.delete_upload(v1::DeleteUploadRequest { name: upload.into() }).await.map(|_| "done".to_owned())
        }
        "ListUploads" => {
            rpc.list_uploads(v1::ListUploadsRequest {}).await.map(|r| format!("{:?}", r.into_inner().uploads))
        }
        "CreateJob" => {
            let work = Some(v1::create_job_request::Work::Training(training));
            let create = v1::CreateJobRequest { request_id: vec![3; 16].into(), label: String::new(), work };
            rpc.create_job(create).await.map(|_| "job".to_owned())
        }
        "ListJobs" => rpc.list_jobs(v1::ListJobsRequest {}).await.map(|r| format!("{:?}", r.into_inner())),
        "GetJob" => rpc.get_job(named).await.map(|_| "job".to_owned()),
        "CancelJob" => rpc.cancel_job(named).await.map(|_| "job".to_owned()),
        "DeleteJob" => rpc.delete_job(named).await.map(|_| "done".to_owned()),
        "Watch" => {
            let mut events = rpc.watch(v1::WatchRequest { job: job.into(), after: 0 }).await?.into_inner();
            events.message().await.map(|_| "event".to_owned())
        }
        "Judge" => {
            let judge = v1::JudgeRequest { job: job.into(), round: 1, verdict: v1::Verdict::Stop.into() };
            rpc.judge(judge).await.map(|_| "done".to_owned())
        }
        "Download" => {
            let download = v1::DownloadRequest { job: job.into(), blob: output.into(), offset: 0 };
            let mut parts = rpc.download(download).await?.into_inner();
            parts.message().await.map(|_| "part".to_owned())
        }
        other => panic!("{other} is no request"),
    }
}

/// Everything in a status.
fn told(status: &Status) -> String {
    let mut entries: Vec<_> = status.metadata().clone().into_headers().into_iter().collect();
    entries.retain(|(name, _)| name.as_ref().is_none_or(|name| name != "date"));
    format!("{:?} {:?} {:?} {entries:?}", status.code(), status.message(), status.details())
}

#[test]
fn the_list_of_requests_is_whole() {
    let proto = include_str!("../../wire/proto/hetal.proto");
    let in_proto: Vec<_> =
        proto.lines().filter_map(|line| line.trim().strip_prefix("rpc ")?.split('(').next()).collect();
    assert_eq!(in_proto, REQUESTS);
}

/// Every request, combined with every client that may not make it, is refused before it is read,
/// with the same response.
#[test]
fn every_request_is_refused_to_strangers_and_other_tenants() {
    let (owner, dir) = (owner(), TempDir::new());
    let authority = |name: &str| {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, theirs) = (authority("ours"), authority("theirs"));
    let certificate = |issuer: &CertifiedIssuer<'_, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(["someone".to_owned()]).unwrap().signed_by(&key, issuer).unwrap();
        (signed.pem().into_bytes(), key.serialize_pem().into_bytes())
    };
    let authorities = dir.path().join("clients.pem");
    std::fs::write(&authorities, ours.pem()).unwrap();
    let mut config =
        Config { client_authorities: Some(authorities), warm_seconds: 0, ..config(&dir.path().join("server")) };
    config.tenants.push(TenantConfig { expires: Some(1), ..tenant("late", "expired") });
    let running = start(config).unwrap();

    // The data of ann: a job that waits for a verdict.
    let ann = Remote::connect(&address(&running, TOKEN)).unwrap();
    let training = owner.upload(&ann);
    let job = ann.train([1; 16], "", &training).unwrap();
    let mut watch = ann.watch(job.id, 0);
    let output = loop {
        if let EventKind::Validation(validation) = watch.next_event().unwrap().unwrap().kind {
            break validation.logits[0].blob;
        }
    };
    let target = Target {
        job: job.id.to_vec(),
        upload: training.batches[0].blob.to_vec(),
        output: output.to_vec(),
        training: message(&training),
    };
    let never = target.never();

    let version = Some(hetal_wire::VERSION.to_string());
    let strangers = [
        ("no credentials", TestClient { version: version.clone(), ..TestClient::default() }),
        ("a wrong token", TestClient::with_token("wrong")),
        ("an expired token", TestClient::with_token("expired")),
        ("half a token", TestClient::with_token(&TOKEN[..TOKEN.len() / 2])),
        ("an empty token", TestClient::with_token("")),
        ("another scheme", TestClient { authorization: Some(format!("Basic {TOKEN}")), ..TestClient::with_token("") }),
        (
            "a certificate of ours that is no tenant's",
            TestClient { version: version.clone(), certificate: Some(certificate(&ours)), ..TestClient::default() },
        ),
    ];
    let mut answers = std::collections::BTreeSet::new();
    for (who, stranger) in &strangers {
        for request in REQUESTS {
            for target in [&target, &never] {
                let status = stranger.talk(&running, async |mut rpc| make(&mut rpc, request, target).await);
                let status = status.expect_err(&format!("{request} with {who}"));
                assert_eq!(status.code(), Code::Unauthenticated, "{request} with {who}: {status:?}");
                answers.insert(told(&status));
            }
        }
    }
    assert_eq!(answers.len(), 1, "{answers:?}");

    // With a certificate of another authority the TLS handshake fails, so no request is possible.
    let forger = TestClient { certificate: Some(certificate(&theirs)), ..TestClient::with_token(TOKEN) };
    let requests = || std::fs::read_to_string(dir.path().join("server/audit.log")).unwrap().lines().count();
    let before = requests();
    for request in REQUESTS {
        // The client library's message depends on when it notices.
        let status = forger.talk(&running, async |mut rpc| make(&mut rpc, request, &target).await).unwrap_err();
        let broken = [Code::Unavailable, Code::Cancelled, Code::Unknown].contains(&status.code());
        assert!(broken && std::error::Error::source(&status).is_some(), "{request}: {status:?}");
    }
    assert_eq!(requests(), before, "a request came through");

    // For another tenant, data of ann looks as if it never existed.
    let bob = TestClient::with_token("another token");
    for request in REQUESTS {
        let ask = |target: &Target| {
            let answer = bob.talk(&running, async |mut rpc| make(&mut rpc, request, target).await);
            answer.map_err(|status| target.anonymous(&told(&status)))
        };
        let (anns, nobodys) = (ask(&target), ask(&never));
        assert_eq!(anns, nobodys, "{request}");
        let own_business = ["Hello", "BeginUpload", "ListJobs", "Upload", "DeleteUpload", "ListUploads"];
        assert!(anns.is_err() || own_business.contains(&request), "{request} was answered: {anns:?}");
        if request == "Hello" {
            assert_eq!(anns, Ok("offer".to_owned()));
        }
        if request == "ListUploads" {
            assert_eq!(anns, Ok("[]".to_owned()));
        }
        if request == "ListJobs" {
            assert_eq!(anns, Ok(format!("{:?}", v1::JobList::default())));
        }
    }

    // Nothing of ann's was changed.
    let found = ann.job(job.id).unwrap();
    assert!(!found.state.has_ended() && ann.jobs().unwrap().len() == 1, "{found:?}");
    for (kind, name) in [(BlobKind::Batch, "batch0"), (BlobKind::Keys, "keys")] {
        assert_eq!(ann.upload(kind, &owner.path(name), &mut |_, _| {}).unwrap().sent, 0);
    }
    ann.cancel(job.id).unwrap();
    report_times(&running, &bob, &target, &never);
}

/// Prints how long responses about another tenant's job and about no job take. Times are not
/// asserted.
fn report_times(running: &hetal_server::Server, bob: &TestClient, target: &Target, never: &Target) {
    let (mut theirs, mut none) = (Vec::new(), Vec::new());
    bob.talk(running, async |mut rpc| {
        for _ in 0..500 {
            for (target, times) in [(target, &mut theirs), (never, &mut none)] {
                let start = Instant::now();
                make(&mut rpc, "GetJob", target).await.unwrap_err();
                times.push(start.elapsed());
            }
        }
    });
    theirs.sort();
    none.sort();
    println!("GetJob: another's {:?}, nobody's {:?} (medians of 500)", theirs[250], none[250]);
}
