//! Tests of sessions.

use super::*;
use crate::AgreementLimits;

/// A session of two batches whose "ciphertexts" are numbers: each step adds 1 to both of a
/// classifier's.
fn session(patience: usize, max_epochs: usize, check_every: usize) -> Session<u32> {
    let agreement = Agreement { patience, max_epochs, check_every, ..AgreementLimits::default().defaults };
    Session::new(agreement, 2, vec![0, 100]).unwrap()
}

/// Runs until the next check or the end of work.
fn work(session: &mut Session<u32>) {
    while let Action::Step { .. } | Action::Refresh = session.next_action() {
        let model = session.model().clone();
        let weights = model.weights.iter().map(|w| w + 1).collect();
        session.stepped(ModelState { weights, ..model }).unwrap();
    }
}

/// Opens the next check and returns it.
fn open(session: &mut Session<u32>) -> CheckRequest {
    work(session);
    let Action::Validate(check) = session.next_action() else { panic!("{:?}", session.next_action()) };
    session.opened().unwrap();
    check
}

fn step(batch: usize, rate: f64, range: f64) -> Action {
    Action::Step { batch, size: StepSize::of(rate), range }
}

#[test]
fn checks_come_every_few_iterations_and_at_the_end() {
    let mut s = session(1, 4, 3);
    assert_eq!(s.next_action(), step(0, 1.0, 32.0));
    let rounds: Vec<_> = (1..=3)
        .map(|round| {
            let check = open(&mut s);
            assert_eq!(check, CheckRequest { number: round, round, repeats: 0, range: 32.0 });
            s.judged(Verdict::Continue).unwrap();
            s.iteration()
        })
        .collect();
    assert_eq!(rounds, [3, 6, 8]);
    assert_eq!(s.next_action(), Action::Return);
    assert_eq!(s.kept().collect::<Vec<_>>(), [(2, &[6, 106][..]), (3, &[8, 108])]);
}

/// The session trains on until as many checks are open as may be, and not a step further.
#[test]
fn a_session_does_not_run_ahead_too_far() {
    let mut s = session(1, 50, 3);
    for round in 1..=MOST_OPEN {
        assert_eq!(open(&mut s).round, round);
    }
    work(&mut s);
    assert_eq!((s.next_action(), s.open(), s.iteration()), (Action::Await, MOST_OPEN, 3 * (MOST_OPEN + 1)));
    s.judged(Verdict::Continue).unwrap();
    assert_eq!(open(&mut s).round, MOST_OPEN + 1);
    // At the end it waits as well.
    let mut s = session(1, 1, 1);
    open(&mut s);
    open(&mut s);
    assert_eq!((s.next_action(), s.open()), (Action::Await, 2));
}

#[test]
fn stop_keeps_the_check_it_was_said_of() {
    let mut s = session(3, 10, 2);
    for _ in 0..3 {
        open(&mut s);
    }
    work(&mut s);
    s.judged(Verdict::Continue).unwrap();
    s.judged(Verdict::Stop).unwrap();
    assert_eq!((s.next_action(), s.iteration(), s.open()), (Action::Return, 4, 0));
    assert_eq!(s.kept().collect::<Vec<_>>(), [(1, &[2, 102][..]), (2, &[4, 104])]);
}

#[test]
fn no_client_holds_a_session_forever() {
    for verdict in [Verdict::LowerRate, Verdict::WidenRange] {
        let mut s = session(3, 10, 2);
        let mut rounds = 0;
        while s.next_action() != Action::Return {
            rounds += 1;
            assert_eq!(open(&mut s).round, rounds);
            s.judged(verdict).unwrap();
        }
        assert!(rounds <= MOST_REPEATS + 1, "{verdict:?}: {rounds}");
        assert_eq!(s.kept().count(), 1);
    }
}

/// Whatever the patience, the best check is among those that are returned.
#[test]
fn the_best_check_is_kept() {
    for patience in 1..=3 {
        let (mut s, mut judge) = (session(patience, 10, 2), crate::Judge::new(patience, 32.0, 3));
        let labels = [0];
        for quality in [1.0, 3.0, 2.0, 1.5, 1.0, 0.5] {
            open(&mut s);
            let logits = crate::Matrix::from_fn(1, 2, |_, k| if k == 0 { quality } else { -quality });
            s.judged(judge.judge(&logits, &labels).unwrap().verdict).unwrap();
            if s.next_action() == Action::Return {
                break;
            }
        }
        assert_eq!((s.next_action(), judge.best_check()), (Action::Return, Some(2)));
        assert!(s.kept().any(|(check, _)| check == 2), "patience {patience}");
    }
}

/// A verdict goes back to the last accepted check, however far the session is: to its weights,
/// its momentum, its recursion and its batch.
#[test]
fn divergence_rolls_back() {
    for ahead in 0..=MOST_OPEN {
        let mut s = session(3, 50, 3);
        open(&mut s);
        s.judged(Verdict::Continue).unwrap();
        let before = s.clone();
        for _ in 0..ahead.max(1) {
            open(&mut s);
        }
        work(&mut s);
        s.judged(Verdict::LowerRate).unwrap();
        assert_eq!((s.weights(), s.next_action(), s.open()), (&[3, 103][..], step(1, 0.5, 32.0), 0));
        assert_eq!(format!("{:?} {:?}", s.model, s.kept), format!("{:?} {:?}", before.model, before.kept));
        let check = open(&mut s);
        assert_eq!(check, CheckRequest { number: 2, round: 3, repeats: 1, range: 32.0 });
        s.judged(Verdict::WidenRange).unwrap();
        assert_eq!(s.next_action(), step(1, 0.5, 128.0));
        assert_eq!(s.kept().collect::<Vec<_>>(), [(1, &[3, 103][..])]);
    }
}

/// When verdicts come changes nothing of what is returned.
#[test]
fn weights_depend_on_verdicts_and_not_on_their_time() {
    use Verdict::{Continue, LowerRate, Stop, WidenRange};
    let verdicts = [Continue, Continue, LowerRate, Continue, WidenRange, Continue, Continue, Stop];
    let run = |ahead: usize| {
        let (mut s, mut taken) = (session(3, 40, 3), 0);
        loop {
            match s.next_action() {
                Action::Return => break,
                Action::Validate(_) if s.open() < ahead => s.opened().unwrap(),
                Action::Validate(_) | Action::Await => {
                    s.judged(verdicts[taken]).unwrap();
                    taken += 1;
                }
                Action::Step { batch, size, range } => {
                    let number = (10.0 * size.rate) as u32 + range as u32 + batch as u32;
                    let mix = |w: &u32| w.wrapping_mul(31).wrapping_add(number);
                    let weights = s.weights().iter().map(mix).collect();
                    s.stepped(ModelState { weights, ..s.model().clone() }).unwrap();
                }
                Action::Refresh => s.stepped(s.model().clone()).unwrap(),
            }
        }
        (taken, s.kept().map(|(check, weights)| (check, weights.to_vec())).collect::<Vec<_>>())
    };
    assert!((2..=MOST_OPEN).all(|ahead| run(ahead) == run(1)));
    assert_eq!((run(1).0, run(1).1.len()), (8, 4));
}

#[test]
fn answers_out_of_turn_are_errors() {
    let mut s = session(3, 10, 2);
    let waiting = "training";
    assert_eq!(s.judged(Verdict::Continue), Err(Error::OutOfTurn { got: "a verdict", waiting }));
    assert_eq!(s.opened(), Err(Error::OutOfTurn { got: "a check", waiting }));
    work(&mut s);
    let model = s.model().clone();
    assert_eq!(s.stepped(model), Err(Error::OutOfTurn { got: "a step", waiting: "validating" }));
    assert!(Session::new(AgreementLimits::default().defaults, 0, vec![0]).is_err());
}

#[test]
fn a_checkpoint_is_the_whole_session() {
    let mut s = session(1, 10, 2);
    for _ in 0..3 {
        open(&mut s);
        s.judged(Verdict::Continue).unwrap();
    }
    open(&mut s);
    let (recursion, _) = s.model().recursion.advance(StepSize { rate: 1.0, alpha: 0.1 });
    s.stepped(ModelState { momentum: Some(vec![50, 150]), recursion, ..s.model().clone() }).unwrap();
    let (record, ciphertexts) = s.checkpoint();
    assert_eq!(ciphertexts, [&8, &108, &50, &150, &8, &108, &6, &106, &4, &104, &6, &106]);
    let text = serde_json::to_string(&record).unwrap();
    let ciphertexts: Vec<u32> = ciphertexts.into_iter().copied().collect();
    let again = Session::resume(serde_json::from_str(&text).unwrap(), ciphertexts.clone()).unwrap();
    assert_eq!(format!("{again:?}"), format!("{s:?}"));
    assert!(matches!(Session::resume(record, ciphertexts[1..].to_vec()), Err(Error::Checkpoint { .. })));
}

/// The record of a classifier in one ciphertext does not mention parts.
#[test]
fn a_checkpoint_of_one_ciphertext_is_as_it_was() {
    let s = Session::new(AgreementLimits::default().defaults, 1, vec![7]).unwrap();
    let (record, ciphertexts) = s.checkpoint();
    assert_eq!(ciphertexts, [&7, &7]);
    let text = serde_json::to_string(&record).unwrap();
    assert!(!text.contains("parts"), "{text}");
    let again = Session::resume(serde_json::from_str(&text).unwrap(), vec![7, 7]).unwrap();
    assert_eq!(format!("{again:?}"), format!("{s:?}"));
    for parts in ["0", "18446744073709551615"] {
        let bad = text.replace("\"batches\":1", &format!("\"batches\":1,\"parts\":{parts}"));
        assert!(Session::resume(serde_json::from_str(&bad).unwrap(), vec![7, 7]).is_err());
    }
}

/// Stored checkpoints must stay readable: the names in the record are fixed.
#[test]
fn the_names_in_a_checkpoint_do_not_change() {
    let model = concat!(
        r#"{"momentum":false,"recursion":{"schedule":{"momentum":"Nesterov","lambda":1.0},"multiple":32768,"#,
        r#""weight_factor":1.0,"lookahead_factor":1.0}}"#
    );
    let agreement = concat!(
        r#"{"batch":1024,"rate":1.0,"lowering":0.5,"momentum":"Nesterov","patience":3,"#,
        r#""max_epochs":50,"range":32.0,"seed":0,"alpha":0.0,"weighted":false,"circuit":1,"rate_hidden":false,"#,
        r#""check_every":0}"#
    );
    let expected =
        format!(r#"{{"agreement":{agreement},"batches":1,"model":{model},"open":[],"accepted":{model},"kept":[],"#)
            + r#""iteration":0,"checks":0,"rate":1.0,"range":32.0,"repeats":0,"phase":"Training"}"#;
    let (record, _) = Session::new(AgreementLimits::default().defaults, 1, vec![7]).unwrap().checkpoint();
    assert_eq!(serde_json::to_string(&record).unwrap(), expected);
}
