//! The latencies as curves, an SVG that needs no other files.
//!
//! From left to right: the part of the pings that were no slower, at equal steps 0, 90, 99, 99.9
//! and 99.99 %, because the slow ones matter. Upwards: the time, in powers of ten. A curve is
//! dashed from the point where it includes pings that were not answered: there it would be higher.

use std::fmt::Write;
use std::ops::RangeInclusive;

use crate::arguments::Demonstration;
use crate::report::on_or_off;
use crate::rows::Row;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 480.0;
/// Edges of the field with the curves.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 620.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 420.0;
/// Range of the time axis: seconds, as powers of ten.
const DECADES: RangeInclusive<i32> = -5..=1;
/// Points of a curve.
const POINTS: usize = 160;
/// Colours: with preemption blue and without red, darker the more crunches there are.
const ON: [&str; 3] = ["#93c5fd", "#3b82f6", "#1e3a8a"];
const OFF: [&str; 3] = ["#fca5a5", "#ef4444", "#7f1d1d"];

pub(crate) fn svg(rows: &[Row], wanted: &Demonstration) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let (rate, crunch) = (wanted.rate, wanted.crunch);
    text(
        &mut svg,
        LEFT,
        26.0,
        "start",
        "17",
        "Latency of /ping beside /crunch",
    );
    let below = format!("{rate} pings a second; a crunch computes for {crunch:?}");
    text(&mut svg, LEFT, 46.0, "start", "13", &below);
    grid(&mut svg);
    let longest = nines(rows.iter().map(|row| row.pings.len()).max().unwrap_or(1));
    for (number, row) in rows.iter().enumerate() {
        let shade = number % ON.len();
        let colour = if row.preempt { ON[shade] } else { OFF[shade] };
        curve(&mut svg, row, colour, longest);
        legend(&mut svg, number, row, colour);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns how many nines a sample of this size resolves.
fn nines(pings: usize) -> f64 {
    (pings.max(2) as f64).log10().min(4.0)
}

fn across(nines: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * nines / 4.0
}

fn up(seconds: f64) -> f64 {
    let (least, most) = (f64::from(*DECADES.start()), f64::from(*DECADES.end()));
    let height = (seconds.max(1e-9).log10().clamp(least, most) - least) / (most - least);
    BOTTOM - (BOTTOM - TOP) * height
}

fn grid(svg: &mut String) {
    let names = ["10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s"];
    for (decade, name) in DECADES.zip(names) {
        let y = up(10f64.powi(decade));
        line(svg, (LEFT, y), (RIGHT, y));
        text(svg, LEFT - 8.0, y + 4.0, "end", "13", name);
    }
    for (nines, name) in (0..).zip(["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]) {
        let x = across(f64::from(nines));
        line(svg, (x, TOP), (x, BOTTOM));
        text(svg, x, BOTTOM + 20.0, "middle", "13", name);
    }
    let middle = (LEFT + RIGHT) / 2.0;
    text(
        svg,
        middle,
        BOTTOM + 42.0,
        "middle",
        "13",
        "of the pings were no slower",
    );
}

fn curve(svg: &mut String, row: &Row, colour: &str, longest: f64) {
    let mut answered = String::new();
    let mut at_least = String::new();
    for point in 0..=POINTS {
        let nines = longest * point as f64 / POINTS as f64;
        let Some(latency) = row.latency(1.0 - 10f64.powf(-nines)) else {
            return;
        };
        let (x, y) = (across(nines), up(latency.time.as_secs_f64()));
        let points = if latency.is_at_least {
            &mut at_least
        } else {
            &mut answered
        };
        write!(points, "{x:.1},{y:.1} ").expect("a String has room");
    }
    for (points, dashes) in [(answered, "none"), (at_least, "5 4")] {
        writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\" \
             stroke-dasharray=\"{dashes}\" stroke-linejoin=\"round\"/>"
        )
        .expect("a String has room");
    }
}

fn legend(svg: &mut String, number: usize, row: &Row, colour: &str) {
    let y = TOP + 14.0 + 46.0 * number as f64;
    let (x, middle) = (RIGHT + 24.0, y - 4.0);
    let end = x + 24.0;
    writeln!(
        svg,
        "<path d=\"M{x} {middle}H{end}\" stroke=\"{colour}\" stroke-width=\"4\"/>"
    )
    .expect("a String has room");
    let preempt = on_or_off(row.preempt);
    let name = format!("preemption {preempt}, {} crunches", row.crunches);
    let (answered, all) = (row.answered(), row.pings.len());
    let more = format!("{answered} of {all} answered");
    text(svg, end + 8.0, y, "start", "13", &name);
    text(svg, end + 8.0, y + 17.0, "start", "11", &more);
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    writeln!(
        svg,
        "<path d=\"M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}\" stroke=\"#ddd\"/>"
    )
    .expect("a String has room");
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, size: &str, text: &str) {
    writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{text}</text>"
    )
    .expect("a String has room");
}
