//! Formats times of the daemon for people, absolute and relative.

use abide_ports::clock::Clock;

use abide_host::clock::SystemClock;

/// Formats a time to the second: `2026-11-16 05:17:02`.
pub(crate) fn date_time(time: &str) -> String {
    let second = time.split(['.', 'Z']).next().unwrap_or(time);
    second.replace('T', " ")
}

/// Formats the time of day only.
pub(crate) fn time_of_day(time: &str) -> String {
    date_time(time).split_once(' ').map_or_else(|| time.to_owned(), |(_, clock)| clock.to_owned())
}

/// Formats the time since then, in one unit.
pub(crate) fn elapsed_since(time: &str) -> String {
    parse_seconds(time).map_or_else(|| "?".to_owned(), |then| format_duration(now_seconds() - then))
}

/// Formats the time until then, in one unit.
pub(crate) fn time_until(time: &str) -> String {
    parse_seconds(time).map_or_else(|| "?".to_owned(), |then| format_duration(then - now_seconds()))
}

/// Returns the system time in seconds since 1970.
pub(crate) fn now_seconds() -> i64 {
    SystemClock.stamp().at.0.div_euclid(1_000_000)
}

/// Formats a duration in its largest unit.
pub(crate) fn format_duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    match seconds {
        0..=59 => format!("{seconds}s"),
        60..=3_599 => format!("{}m", seconds / 60),
        3_600..=86_399 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Parses an RFC 3339 time in UTC into seconds since 1970.
fn parse_seconds(time: &str) -> Option<i64> {
    let full = date_time(time);
    let (date, clock) = full.split_once(' ')?;
    let numbers = |text: &str, between: char| -> Option<Vec<i64>> {
        text.split(between).map(|part| part.parse().ok()).collect()
    };
    let (date, clock) = (numbers(date, '-')?, numbers(clock, ':')?);
    let ([year, month, day], [hours, minutes, seconds]) = (date.as_slice(), clock.as_slice()) else {
        return None;
    };
    // Years start in March here, so that the leap day is the last day of its year.
    let (year, month) = if *month > 2 { (*year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469;
    Some(days * 86_400 + hours * 3_600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_and_formatted() {
        assert_eq!(parse_seconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_seconds("2000-02-29T12:34:56.789Z"), Some(951_827_696));
        assert_eq!(parse_seconds("2026-11-16T05:17:02.000001Z"), Some(1_794_806_222));
        assert_eq!(parse_seconds("yesterday"), None);
        assert_eq!(date_time("2026-11-16T05:17:02.000001Z"), "2026-11-16 05:17:02");
        assert_eq!(time_of_day("2026-11-16T05:17:02Z"), "05:17:02");
        assert_eq!(
            [
                format_duration(-3),
                format_duration(59),
                format_duration(61),
                format_duration(7_300),
                format_duration(900_000)
            ],
            ["0s", "59s", "1m", "2h", "10d"]
        );
    }
}
