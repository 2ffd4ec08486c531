//! The end of a certificate's validity, and the operator's warnings before it.

use crate::clock::{self, Clock};
use crate::net::certificates::ServerCertificates;
use std::sync::Arc;
use std::time::Duration;

/// How long before the end of a certificate the operator is warned.
const WARNING: Duration = Duration::from_secs(60 * DAY);
const DAY: u64 = 24 * 3600;

/// How often a running server looks at the clock.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Repeats the warnings about certificates every day.
pub struct DailyWarnings {
    certificates: Arc<ServerCertificates>,
    clock: Clock,
    /// The day of the last warnings, since 1970.
    day: Option<u64>,
}

impl DailyWarnings {
    /// Warnings about these certificates.
    pub fn new(certificates: Arc<ServerCertificates>, clock: Clock) -> Self {
        Self { certificates, clock, day: None }
    }

    /// The warnings that are due: all of them, once on each day.
    fn due(&mut self) -> Vec<String> {
        let now = (self.clock)() / 1000;
        if self.day.replace(now / DAY) == Some(now / DAY) {
            return Vec::new();
        }
        self.certificates.warnings(now)
    }

    /// Logs the warnings now and on each later day.
    pub async fn run(mut self) {
        loop {
            for warning in self.due() {
                tracing::warn!("{warning}");
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// A warning if a certificate (DER) has ended or ends soon. `now` is in seconds since 1970.
pub fn warning(name: &str, der: &[u8], now: u64) -> Option<String> {
    let Some(end) = not_after(der) else {
        return Some(format!("the end of {name} cannot be read"));
    };
    match end.checked_sub(now) {
        None => Some(format!("{name} ended {} days ago: clients refuse it", (now - end) / DAY)),
        Some(left) if left < WARNING.as_secs() => Some(format!("{name} ends in {} days", left / DAY)),
        Some(_) => None,
    }
}

/// The time of day in seconds since 1970.
pub fn now() -> u64 {
    clock::millis() / 1000
}

/// The last second in which a certificate (DER) is valid, since 1970.
pub fn not_after(der: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(der)?;
    let (_, mut body, _) = element(certificate)?;
    // Version (optional), serial number, algorithm and issuer come before the validity.
    if body.first() == Some(&0xA0) {
        body = element(body)?.2;
    }
    for _ in 0..3 {
        body = element(body)?.2;
    }
    let (_, validity, _) = element(body)?;
    let (_, _, end) = element(validity)?;
    let (tag, text, _) = element(end)?;
    seconds(tag, std::str::from_utf8(text).ok()?)
}

/// Splits a DER element off: its tag, its content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let count = usize::from(first & 0x7F);
        let digits = rest.get(..count).filter(|_| count <= 4)?;
        (digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit)), &rest[count..])
    };
    Some((tag, rest.get(..len)?, &rest[len..]))
}

/// Parses UTCTime (`YYMMDDhhmmssZ`) or GeneralizedTime (`YYYYMMDDhhmmssZ`).
fn seconds(tag: u8, text: &str) -> Option<u64> {
    let text = match tag {
        // Years from 50 on are in the twentieth century.
        0x17 => format!("{}{text}", if text < "50" { "20" } else { "19" }),
        0x18 => text.to_owned(),
        _ => return None,
    };
    let digits = text.strip_suffix('Z').filter(|digits| digits.len() == 14 && digits.is_ascii())?;
    let number = |from: usize, to: usize| digits[from..to].parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let time = number(8, 10)? * 3600 + number(10, 12)? * 60 + number(12, 14)?;
    Some(days_since_1970(year, month, day)? * DAY + time)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let years: u64 = (1970..year).map(|year| 365 + u64::from(is_leap(year))).sum();
    Some(years + months[..month as usize - 1].iter().sum::<u64>() + day - 1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    /// A certificate that is valid to the end of a day.
    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, month, day);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        // Seconds as `date --utc +%s` gives them, in both formats of time.
        for ((year, month, day), end) in
            [((2026, 3, 1), 1_772_323_200), ((2049, 12, 31), 2_524_521_600), ((2096, 2, 29), 3_981_312_000)]
        {
            assert_eq!(not_after(&certificate(year, month, day)), Some(end), "{year}-{month}-{day}");
        }
        let whole = certificate(2030, 1, 1);
        (0..whole.len().min(150)).for_each(|len| assert_eq!(not_after(&whole[..len]), None, "{len}"));
    }

    /// A server that runs for long warns on each day, by the clock that it is given.
    #[test]
    fn the_operator_is_warned_every_day() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let (dir, end) = (hetal_testkit::TempDir::new(), 1_772_323_200);
        let file = dir.path().join("server.pem");
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2026, 3, 1);
        std::fs::write(&file, params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()).unwrap();
        let config = crate::Config { certificate: Some(file), ..crate::Config::default() };
        let certificates = Arc::new(ServerCertificates::read(&config).unwrap());
        let now = Arc::new(AtomicU64::new(0));
        let set = |seconds: u64| now.store(1000 * seconds, Ordering::Relaxed);
        let clock = Arc::clone(&now);
        let mut daily = DailyWarnings::new(Arc::clone(&certificates), Arc::new(move || clock.load(Ordering::Relaxed)));
        let warned = |daily: &mut DailyWarnings, seconds| {
            set(seconds);
            daily.due().len()
        };
        let times = [end - 61 * DAY, end - 59 * DAY, end - 59 * DAY + 3600, end - 58 * DAY, end + DAY, end + DAY + 1];
        assert_eq!(times.map(|seconds| warned(&mut daily, seconds)), [0, 1, 0, 1, 1, 0]);
        // A clock that was set back does not silence the warnings.
        assert_eq!(warned(&mut daily, end - 2 * DAY), 1);
        let left = |seconds| certificates.seconds_left(seconds);
        assert_eq!((left(end - 5), left(end + 7)), (Some(5), Some(-7)));
        assert_eq!(ServerCertificates::default().seconds_left(end), None);
    }

    #[test]
    fn the_operator_is_warned_before_the_end() {
        let (der, end) = (certificate(2026, 3, 1), 1_772_323_200);
        let warned = |now| warning("server.pem", &der, now);
        assert_eq!(warned(end - 61 * DAY), None);
        assert_eq!(warned(end - 59 * DAY).unwrap(), "server.pem ends in 59 days");
        assert_eq!(warned(end + 2 * DAY).unwrap(), "server.pem ended 2 days ago: clients refuse it");
        assert!(warning("server.pem", b"nonsense", end).unwrap().contains("cannot be read"));
    }
}
