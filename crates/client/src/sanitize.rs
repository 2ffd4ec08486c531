//! Text from a server or from a file, made safe to print in a terminal.

use hetal_extract_api::sanitize_terminal;

/// The most characters of a text from a server or from a file.
const MAX_CHARACTERS: usize = 500;

/// Shortens a text from a server or from a file and makes it safe to print: it must not overwrite
/// what this program prints.
pub(crate) fn sanitize_foreign_text(text: &str) -> String {
    sanitize_terminal(&text.chars().take(MAX_CHARACTERS).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::{Error, Event, EventKind, JobInfo, Offer};
    use hetal_wire::v1;
    use tonic::{Code, Status};

    #[test]
    fn a_server_s_words_do_nothing_to_a_terminal() {
        let bad = "no room\r\x1b]52;c;cm0gLXJm\x07\x1b[2Aall is well\u{202e}\u{9b}1m";
        let good = "no room\u{fffd}\u{fffd}]52;c;cm0gLXJm\u{fffd}\u{fffd}[2Aall is well\u{fffd}\u{fffd}1m";
        assert_eq!(sanitize_foreign_text(bad), good);
        assert_eq!(sanitize_foreign_text("Zürich: 3 × 4 µs"), "Zürich: 3 × 4 µs");
        assert_eq!(sanitize_foreign_text(&"x".repeat(10_000)).len(), MAX_CHARACTERS);
        for code in [Code::NotFound, Code::ResourceExhausted, Code::Internal, Code::InvalidArgument] {
            let said = Error::of("here", Status::new(code, bad)).to_string();
            assert!(said.contains(good), "{code:?}: {said:?}");
        }
        for status in [Status::deadline_exceeded(bad), Status::unavailable(bad), Status::unauthenticated(bad)] {
            let said = Error::of("here", status).to_string();
            assert!(!said.contains(['\x1b', '\u{202e}', '\r']), "{said:?}");
        }
        let failed = v1::event::What::Failed(v1::Failed { reason: bad.to_owned() });
        let event = Event::parse(v1::Event { sequence: 1, what: Some(failed) }).unwrap();
        assert!(matches!(event.kind, EventKind::Failed { reason } if reason == good));
        let state = v1::JobState::Failed.into();
        let (id, label) = (vec![1; 16].into(), bad.to_owned());
        let job = v1::Job { id, state, label, reason: bad.to_owned(), ..v1::Job::default() };
        let job = JobInfo::parse(job).unwrap();
        assert_eq!((job.label.as_str(), job.reason.as_str()), (good, good));
        let set = v1::ParameterSet { id: vec![7; 32].into(), name: bad.to_owned() };
        let defaults = v1::Terms { batch: 8, patience: 1, max_epochs: 1, range: 128.0, ..v1::Terms::default() };
        let (defaults, bounds) = (Some(defaults), Some(v1::Bounds::default()));
        let offer = v1::Offer {
            version: hetal_wire::VERSION,
            program: bad.to_owned(),
            sets: vec![set],
            defaults,
            bounds,
            ..v1::Offer::default()
        };
        let offer = Offer::parse(offer).unwrap();
        assert_eq!((offer.program.as_str(), offer.sets[0].name.as_str()), (good, good));
    }
}
