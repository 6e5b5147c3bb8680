use super::*;

fn site(number: u32) -> Site {
    let row = Row {
        base: Base::Bp,
        cfa: number,
        bp: CallersBp::Saved(number + 1),
    };
    Site::new(Mobility::Movable, Some(row))
}

#[cfg(not(indent_loom))]
mod plain {
    use super::super::super::rows::MOST_WORDS;
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn code_outside_the_executable_is_bound() {
        let sites = Sites::new();
        let foreign = libc::malloc as unsafe extern "C" fn(usize) -> *mut libc::c_void as usize;
        let own = resolve as fn(fn(usize) -> Mobility) -> usize as usize;
        for pc in [own, foreign, 8] {
            sites.want(pc);
        }
        assert_eq!(
            resolve_in(&sites, |_, row| Site::new(Mobility::Movable, row)),
            3
        );
        assert!(sites.get(own).is_some_and(|site| site.row().is_some()));
        assert_eq!(sites.get(8), Some(Site::BOUND), "nothing is mapped there");
        if !Objects::now().list[0].contains(foreign) {
            assert_eq!(sites.get(foreign), Some(Site::BOUND));
        }
    }

    #[test]
    fn a_site_comes_out_of_its_word_as_it_went_in() {
        use CallersBp::{Same, Saved, Unknown};
        for (base, cfa) in [(Base::Sp, 1), (Base::Bp, 2), (Base::Sp, MOST_WORDS)] {
            for bp in [Same, Unknown, Saved(2), Saved(MOST_WORDS)] {
                let row = Some(Row { base, cfa, bp });
                assert_eq!(Site::new(Mobility::Movable, row).row(), row);
                assert_eq!(Site::new(Mobility::Bound, row), Site::BOUND);
            }
        }
        assert_eq!(Site::new(Mobility::Movable, None), Site::BOUND);
        assert_eq!(Site::BOUND.row(), None);
    }

    #[test]
    fn what_is_wanted_is_found_once() {
        let sites = Sites::new();
        assert!(sites.want(10), "the first rings");
        assert!(!sites.want(11));
        let mut looked = Vec::new();
        let mut find = |pc| {
            looked.push(pc);
            site(pc as u32)
        };
        assert_eq!(sites.resolve(&mut find), 2);
        assert!(sites.want(10), "asked by one that was late");
        assert_eq!(sites.resolve(&mut find), 0);
        looked.sort();
        assert_eq!(looked, [10, 11]);
        assert_eq!(sites.get(10), Some(site(10)));
        assert_eq!(sites.get(12), None);
    }

    #[test]
    fn too_many_wishes_are_dropped_and_may_come_again() {
        let sites = Sites::new();
        for pc in 1..10 * WISHES {
            let _ = sites.want(pc);
        }
        let find = |pc| site(pc as u32);
        let mut found = 0;
        while (1..10 * WISHES).any(|pc| sites.get(pc).is_none()) {
            let now = sites.resolve(find);
            assert!(now > 0 && now <= WISHES);
            found += now;
            for pc in (1..10 * WISHES).filter(|pc| sites.get(*pc).is_none()) {
                let _ = sites.want(pc);
            }
        }
        assert_eq!(found, 10 * WISHES - 1);
    }

    #[test]
    fn stress_readers_see_right_sites_while_the_table_grows() {
        const COUNT: usize = 20_000;
        let sites = Sites::new();
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            let read = || {
                let mut seen = 0;
                while seen < COUNT {
                    let known = done.load(Acquire);
                    for pc in (1..=COUNT).step_by(7) {
                        match sites.get(pc) {
                            Some(found) => assert_eq!(found, site(pc as u32)),
                            None => assert!(pc > known, "{pc} was known"),
                        }
                    }
                    seen = known;
                }
            };
            scope.spawn(read);
            scope.spawn(read);
            for pc in 1..=COUNT {
                assert!(sites.insert(pc, site(pc as u32)));
                done.store(pc, Release);
            }
        });
    }
}

#[cfg(indent_loom)]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_a_reader_beside_a_growing_table_sees_nothing_or_the_right_site() {
        loom::model(|| {
            let sites = Arc::new(Sites::new());
            let own = sites.clone();
            // The writer is the thread that runs first: loom then sees where a reader may come in.
            let reader = thread::spawn(move || {
                let mut known = false;
                for _ in 0..2 {
                    let found = own.get(2);
                    assert!(found.is_none_or(|found| found == site(2)));
                    assert!(found.is_some() || !known, "forgotten");
                    known = found.is_some();
                }
            });
            for pc in 1..=3 {
                assert!(sites.insert(pc, site(pc as u32)));
            }
            reader.join().unwrap();
            for pc in 1..=3 {
                assert_eq!(sites.get(pc), Some(site(pc as u32)));
            }
        });
    }

    #[test]
    fn loom_a_wish_is_seen_or_rings() {
        loom::model(|| {
            let sites = Arc::new(Sites::new());
            let rings = Arc::new(AtomicU64::new(0));
            let wishers: Vec<_> = (1..=2)
                .map(|pc| {
                    let (sites, rings) = (sites.clone(), rings.clone());
                    thread::spawn(move || {
                        if sites.want(pc) {
                            rings.fetch_add(1, AcqRel);
                        }
                    })
                })
                .collect();
            let find = |pc| site(pc as u32);
            let heard = rings.load(Acquire); // these are served by the next line
            let mut found = sites.resolve(find);
            for wisher in wishers {
                wisher.join().unwrap();
            }
            if rings.load(Acquire) > heard {
                found += sites.resolve(find);
            }
            assert_eq!(found, 2, "a wish that nobody rang for");
        });
    }
}
