//! Requests per second that one core serves: `cargo run --release -p penstock-station --example station_rate`.

use std::time::Instant;

use penstock_station::{Op, Request, Station, StorageProfile};

fn main() {
    let class =
        r#"{"overhead": {"kind": "lognormal", "mean_s": 0.0001, "sigma": 0.3}, "rate_bps": 5e8}"#;
    for servers in [1, 16] {
        let text = format!(
            r#"{{"schema": "penstock/storage-profile/1", "name": "rate", "servers": {servers},
                "sequential_streams": 32, "interface_iops": 100000,
                "read": {{"sequential": {class}, "random": {class}}},
                "write": {{"sequential": {class}, "random": {class}}}}}"#
        );
        let Ok(mut station) = StorageProfile::from_json(&text).and_then(|p| Station::new(&p, 1))
        else {
            return;
        };
        let n = 5_000_000u64;
        let start = Instant::now();
        let mut due = 0;
        for i in 0..n {
            let offset = (i.wrapping_mul(2_654_435_761) % 262_144) * 4096;
            due = station
                .arrive(
                    i * 1000,
                    Request {
                        op: Op::Read,
                        offset,
                        size: 4096,
                    },
                )
                .due_ns;
        }
        let rate = n as f64 / start.elapsed().as_secs_f64();
        println!(
            "{servers} servers: {:.2} M requests/s (last due {due} ns)",
            rate / 1e6
        );
    }
}
