//! A closed loop over a device that changes.

use penstock_queuenet::{simulate, ClosedLoop};

fn spec(changes: &str) -> ClosedLoop {
    let class = r#"{"overhead": {"kind": "constant", "value_s": 0.001}}"#;
    let both = format!(r#"{{"sequential": {class}, "random": {class}}}"#);
    serde_json::from_str(&format!(
        r#"{{"profile": {{"schema": "penstock/storage-profile/1", "name": "t", "servers": 1,
            "read": {both}, "write": {both}}},
            "duration_s": 20, "quantiles": [0.5], "changes": {changes},
            "clients": [{{"iodepth": 32, "pattern":
                {{"kind": "random", "op": "write", "block_bytes": 4096, "file_bytes": 1073741824}}}}]}}"#
    ))
    .unwrap()
}

#[test]
fn rate_follows_changes_immediately() {
    let rate = |changes: &str| simulate(&spec(changes)).unwrap().write.operations as f64;
    assert_eq!(rate("[]"), 20_000.0 + 32.0 - 1.0);
    // 5 s at 1000/s, 5 s at 100/s, 10 s at 1000/s: the change also moves the due times of waiting requests
    let measured = rate(
        r#"[{"t_ns": 5000000000, "patch": {"limits": {"write_iops": 100}}},
            {"t_ns": 10000000000, "patch": {"limits": {"write_iops": "max"}}}]"#,
    );
    assert!((measured / 15_500.0 - 1.0).abs() < 0.01, "{measured}");
    let slowed = rate(
        r#"[{"t_ns": 5000000000, "patch": {"slow": {"factor": 10}}},
            {"t_ns": 10000000000, "patch": {"slow": null}}]"#,
    );
    assert!((slowed / 15_500.0 - 1.0).abs() < 0.01, "{slowed}");
}

#[test]
fn empty_change_has_no_effect() {
    let plain = simulate(&spec("[]")).unwrap();
    let patched = simulate(&spec(r#"[{"t_ns": 3000000000, "patch": {}}]"#)).unwrap();
    assert_eq!(plain, patched);
}

#[test]
fn changes_out_of_order_are_refused() {
    let wrong = spec(r#"[{"t_ns": 2, "patch": {}}, {"t_ns": 1, "patch": {}}]"#);
    assert!(simulate(&wrong).unwrap_err().0.contains("order"));
}
