//! Resources of this machine: cores and memory.

use std::fs;

/// Returns the number of cores available to this process.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

/// Returns the bytes of memory available to this process: those of the machine, or the limit of our control group if
/// that is lower. 0 if unknown.
pub fn memory_bytes() -> u64 {
    let installed =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_mem_total(&text)).unwrap_or(0);
    let bound = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let bound = bound.and_then(|text| text.trim().parse().ok()).unwrap_or(u64::MAX);
    installed.min(bound)
}

fn parse_mem_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kibibytes() {
        assert_eq!(parse_mem_total("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764 * 1024));
        assert_eq!(parse_mem_total("nothing of the kind"), None);
    }
}
