//! Libraries in C and Rust that start their work while endless loops hold all workers.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use indent::runtime::Runtime;
use indent::task::yield_now;
use indent::time::sleep;

/// Endless loops: more than there are workers.
const LOOPS: usize = 3;
/// Fibers that use the library at once.
const FIBERS: u64 = 8;

/// Spawns the loops, then fibers that must end beside them, each with its number.
fn beside_loops(rt: &Runtime, work: impl Fn(u64) + Send + Sync + 'static) {
    for _ in 0..LOOPS {
        drop(rt.spawn(|| {
            let mut n = 0_u64;
            loop {
                n = black_box(n.wrapping_add(1));
            }
        }));
    }
    let work = Arc::new(work);
    let start = |n| {
        let work = work.clone();
        rt.spawn(move || work(n))
    };
    let working: Vec<_> = (0..FIBERS).map(start).collect();
    working.into_iter().for_each(|fiber| fiber.join().unwrap());
}

/// Uses a database for each fiber, with a pause in every transaction.
pub(crate) fn sqlite(rt: &Runtime) {
    beside_loops(rt, |n| {
        let mut database = rusqlite::Connection::open_in_memory().unwrap();
        let create = "create table entries (number integer, name text)";
        database.execute(create, []).unwrap();
        for batch in 0..4 {
            let transaction = database.transaction().unwrap();
            for row in 0..100 {
                let insert = "insert into entries values (?1, ?2)";
                let number = (batch * 100 + row) * (n + 1);
                let values = rusqlite::params![number as i64, format!("entry {row}")];
                transaction.execute(insert, values).unwrap();
            }
            sleep(Duration::from_millis(1));
            transaction.commit().unwrap();
        }
        let select = "select sum(number), count(distinct name) from entries";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let (sum, names): (i64, i64) = database.query_row(select, [], row).unwrap();
        assert_eq!((sum as u64, names), (79_800 * (n + 1), 100));
    });
}

/// Uses an interpreter for each fiber, whose scripts call functions that sleep.
pub(crate) fn lua(rt: &Runtime) {
    beside_loops(rt, |n| {
        let lua = mlua::Lua::new();
        let pause = |_: &mlua::Lua, number: u64| {
            sleep(Duration::from_millis(1));
            Ok(number + 1)
        };
        let pause = lua.create_function(pause).unwrap();
        lua.globals().set("pause", pause).unwrap();
        lua.globals().set("n", n).unwrap();
        let script = "
            local names = {}
            for i = 1, 10 do
                names[#names + 1] = string.format('%d', pause(n * 100 + i))
            end
            return table.concat(names, ' ')";
        let found: String = lua.load(script).eval().unwrap();
        let expected: Vec<_> = (2..=11).map(|i| (n * 100 + i).to_string()).collect();
        assert_eq!(found, expected.join(" "));
    });
}

/// Uses one map for all fibers, with entries that stay locked while their fiber yields.
pub(crate) fn dashmap(rt: &Runtime) {
    let map: Arc<dashmap::DashMap<u64, u64>> = Arc::default();
    let counted = map.clone();
    beside_loops(rt, move |_| {
        for key in 0..100 {
            let mut entry = map.entry(key % 10).or_insert(0);
            if key % 20 == 0 {
                yield_now();
            }
            *entry += 1;
        }
    });
    assert!(counted.iter().all(|entry| *entry == FIBERS * 10));
    assert_eq!(counted.len(), 10);
}

/// Formats times; the crate caches the local time zone in a thread-local.
pub(crate) fn chrono(rt: &Runtime) {
    beside_loops(rt, |_| {
        let mut last = chrono::Local::now();
        for _ in 0..20 {
            let now = chrono::Local::now();
            let text = now.to_rfc3339();
            sleep(Duration::from_millis(1));
            assert_eq!(chrono::DateTime::parse_from_rfc3339(&text).unwrap(), now);
            assert!(now >= last - chrono::TimeDelta::seconds(5), "{now} {last}");
            last = now;
        }
    });
}

/// Uses one cache for all fibers; an initializer that sleeps makes each entry once.
pub(crate) fn moka(rt: &Runtime) {
    let cache = moka::sync::Cache::new(1000);
    let filled = cache.clone();
    beside_loops(rt, move |n| {
        for i in 0..40 {
            let key = (n + i) % 20;
            let value = cache.get_with(key, || {
                sleep(Duration::from_millis(1));
                key * key
            });
            assert_eq!(value, key * key);
        }
    });
    (0..20).for_each(|key| assert_eq!(filled.get(&key), Some(key * key)));
}
