use std::fs;
use std::process::{Command, Stdio};

use super::testing::{process, Place};
use super::*;
use crate::sources::testing::Memory;

const SECOND: i64 = 1_000_000_000;

fn request(more: Value) -> StartRequest {
    let mut request = more;
    request["spool"] = "unused".into();
    serde_json::from_value(request).unwrap()
}

fn recorded(place: &Place, named: &str) -> Processes {
    Processes::new(&request(
        json!({"root": place.path(), "processes_named": [named]}),
    ))
}

fn named(name: &str) -> Processes {
    Processes::new(&request(json!({"processes_named": [name]})))
}

fn sampled(source: &mut Processes, memory: &mut Memory, time_ns: i64, complete: bool) {
    (memory.time_ns, memory.complete) = (time_ns, complete);
    memory.values.clear();
    memory.put.clear();
    source.sample(memory).unwrap();
}

#[test]
fn a_recorded_process() {
    let place = Place::new("one");
    process(&place, 41, "fio", 1, 5);
    process(&place, 42, "sh", 1, 5);
    let (mut source, mut memory) = (recorded(&place, "fio"), Memory::default());
    sampled(&mut source, &mut memory, SECOND, true);
    let get = |metric: &str| memory.get(&format!("process/pid=41 comm=fio/{metric}"));
    assert_eq!(get("cpu_time"), 10.0 * 1e9 / ticks_per_second());
    assert_eq!(get("resident"), 5.0 * source.host.page_bytes);
    assert_eq!(get("threads"), 2.0);
    assert_eq!((get("read_bytes"), get("written_bytes")), (4096.0, 8192.0));
    assert_eq!(
        (get("call_read_bytes"), get("call_written_bytes")),
        (11.0, 12.0)
    );
    assert_eq!(memory.get("process/all/sampled"), 1.0);
    assert_eq!(memory.values.len(), 9);
}

#[test]
fn unreadable_values_are_omitted() {
    let place = Place::new("io");
    process(&place, 41, "fio", 1, 5);
    fs::remove_file(place.path().join("proc/41/io")).unwrap();
    let (mut source, mut memory) = (recorded(&place, "fio"), Memory::default());
    sampled(&mut source, &mut memory, SECOND, true);
    assert_eq!(memory.values.len(), 5);
}

#[test]
fn processes_beyond_the_maximum_are_counted() {
    let place = Place::new("many");
    let all = MOST as u32 + 3;
    for pid in 1..=all {
        process(&place, pid, "fio", 1, 5);
    }
    let (mut source, mut memory) = (recorded(&place, "fio"), Memory::default());
    sampled(&mut source, &mut memory, SECOND, true);
    assert_eq!(memory.get("process/all/sampled"), MOST as f64);
    assert_eq!(memory.get("process/all/not_sampled"), 3.0);
    assert_eq!(source.stats().unwrap().1["most_not_sampled"], 3);
}

#[test]
fn exec_starts_a_new_series() {
    let place = Place::new("exec");
    process(&place, 41, "fio-sh", 1, 5);
    let (mut source, mut memory) = (recorded(&place, "fio*"), Memory::default());
    sampled(&mut source, &mut memory, SECOND, true);
    process(&place, 41, "fio", 1, 5);
    sampled(&mut source, &mut memory, 2 * SECOND, true);
    assert!(memory
        .values
        .contains_key("process/pid=41 comm=fio/cpu_time"));
    assert!(!memory.values.keys().any(|k| k.contains("fio-sh")));
    // a process that renames itself repeatedly does not fill the table
    for turn in 0..50 {
        process(&place, 41, &format!("fio{turn}"), 1, 5);
        sampled(&mut source, &mut memory, (3 + turn) * SECOND, true);
        assert_eq!(memory.values.len(), 9);
    }
    assert_eq!(source.processes[0].names, MOST_NAMES);
}

#[test]
fn idle_processes_are_sampled_once_a_second() {
    let place = Place::new("idle");
    let comm = format!("p{}", std::process::id());
    let program = place.path().join(&comm);
    std::os::unix::fs::symlink("/bin/cat", &program).unwrap();
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut source, mut memory) = (named(&comm), Memory::default());
    let name = format!("process/pid={} comm={comm}", child.id());
    let at = |memory: &Memory, metric: &str| -> Vec<(i64, f64)> {
        let series = format!("{name}/{metric}");
        let of = memory.put.iter().filter(|(_, n, _)| *n == series);
        of.map(|(time, _, value)| (*time, *value)).collect()
    };
    std::thread::sleep(std::time::Duration::from_millis(50)); // it waits for its input
    let tick = SECOND / 100;
    sampled(&mut source, &mut memory, SECOND, true);
    let before = at(&memory, "call_written_bytes");
    assert_eq!(before, [(SECOND, 0.0)]);
    sampled(&mut source, &mut memory, SECOND + tick, false);
    sampled(&mut source, &mut memory, SECOND + 2 * tick, false);
    assert_eq!(at(&memory, "cpu_time"), []);

    use std::io::{Read, Write};
    child
        .stdin
        .as_mut()
        .unwrap()
        .write_all(&[b'x'; 101])
        .unwrap();
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut [0; 101])
        .unwrap();
    sampled(&mut source, &mut memory, SECOND + 3 * tick, false);
    let woken = at(&memory, "call_written_bytes");
    assert_eq!(
        woken,
        [(SECOND + 2 * tick, 0.0), (SECOND + 3 * tick, 101.0)]
    );
    std::thread::sleep(std::time::Duration::from_millis(50));
    sampled(&mut source, &mut memory, SECOND + 4 * tick, false);
    sampled(&mut source, &mut memory, 2 * SECOND, true);
    let last = at(&memory, "call_written_bytes");
    assert_eq!(last.last(), Some(&(2 * SECOND, 101.0)));

    child.kill().unwrap();
    child.wait().unwrap();
    sampled(&mut source, &mut memory, 3 * SECOND, true);
    assert_eq!(at(&memory, "cpu_time"), []);
    assert_eq!(memory.get("process/all/sampled"), 0.0);
    assert_eq!(source.stats().unwrap().1["ended"], 1);
}

#[test]
fn reused_pids_are_new_processes() {
    let place = Place::new("reused");
    process(&place, 41, "fio", 1, 5);
    let (mut source, mut memory) = (recorded(&place, "fio"), Memory::default());
    sampled(&mut source, &mut memory, SECOND, true);
    // contents of an ended process's files
    fs::write(place.path().join("proc/41/stat"), "").unwrap();
    sampled(&mut source, &mut memory, 2 * SECOND, true);
    assert_eq!(memory.get("process/all/sampled"), 0.0);
    process(&place, 41, "fio", 1, 900);
    sampled(&mut source, &mut memory, 60 * SECOND, true);
    assert_eq!(source.stats().unwrap().1["seen"], 2);
}
