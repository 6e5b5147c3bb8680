use super::*;

fn parse_words(words: &str) -> Option<Request> {
    parse(words.split_whitespace().map(String::from))
}

#[test]
fn reads_the_command_line() {
    let request = Request {
        hogs: 8,
        kind: Kind::Alloc,
        seconds: 2.5,
        rings: RINGS,
    };
    assert_eq!(parse_words("8 alloc 2.5"), Some(request));
    let fewer = Request {
        rings: 10,
        ..request
    };
    assert_eq!(parse_words("8 alloc 2.5 10"), Some(fewer));
}

#[test]
fn refuses_a_bad_command_line() {
    for words in [
        "",
        "8",
        "8 arith",
        "8 nothing 1",
        "x arith 1",
        "8 arith 0",
        "8 arith 1 0",
        "8 arith 1 1 1",
    ] {
        assert_eq!(parse_words(words), None, "{words:?}");
    }
}

#[test]
fn one_answer_serves_all_rings_made_before() {
    let bell = Bell::new(3);
    let wake: Wake = Arc::new(|| ());
    bell.ring(&wake);
    bell.ring(&wake);
    bell.answer();
    let lateness = bell.lateness();
    assert_eq!((lateness.served, lateness.in_order.len()), (2, 2));
    assert!(lateness.in_order[0] >= lateness.in_order[1]);
}

#[test]
fn a_ring_that_nobody_answers_counts_with_the_time_it_has_waited() {
    let bell = Bell::new(1);
    let wake: Wake = Arc::new(|| ());
    bell.ring(&wake);
    thread::sleep(Duration::from_millis(20));
    let lateness = bell.lateness();
    assert_eq!(lateness.served, 0);
    assert!(lateness.quantile(0.5) >= 20_000.0);
}

#[test]
fn the_ringer_stops_when_there_are_no_rings_left() {
    let bell = Bell::new(5);
    let wake: Wake = Arc::new(|| ());
    let far = Instant::now() + Duration::from_secs(3600);
    assert_eq!(bell.ring_until(far, 10_000, &wake).in_order.len(), 5);
}

#[test]
fn quantiles_are_of_all_rings() {
    let lateness = Lateness::new((1..=1000).rev().map(|us| us * 1000).collect(), 1000);
    let columns = lateness.columns().0;
    assert_eq!(
        columns,
        " rung=1000 served=1000 p50_us=500.0 p99_us=990.0 p999_us=999.0 max_us=1000.0"
    );
    assert!(Lateness::new(Vec::new(), 0).quantile(0.5).is_nan());
}
