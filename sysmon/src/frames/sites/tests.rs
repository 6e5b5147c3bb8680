use super::*;

fn site(number: u32) -> Site {
    let row = Row {
        base: Base::Bp,
        cfa: number,
        bp: CallersBp::Saved(number + 1),
    };
    Site::new(Verdict::Free, true, Some(row))
}

#[cfg(not(indent_loom))]
mod plain {
    use super::super::super::rows::MOST_WORDS;
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    const CHANGED: Census = Census {
        loaded: 9,
        unloaded: 1,
    };

    /// Loads a library that nobody else uses; `None` if there is none.
    fn load() -> Option<(*mut libc::c_void, usize)> {
        let name = c"libthread_db.so.1";
        // SAFETY: a library without initializers of its own.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        // SAFETY: it is loaded, and the name ends with a zero byte.
        let function = unsafe { libc::dlsym(library, c"td_ta_new".as_ptr()) };
        Some((library, function.addr())).filter(|_| !function.is_null())
    }

    #[test]
    fn a_library_loaded_later_is_found_and_forgotten_when_it_is_gone() {
        let sites = Sites::new();
        resolve_in(&sites, |_| Verdict::Alone); // before it is there
        let Some((library, function)) = load() else {
            let line = b"SKIPPED a_library_loaded_later_is_found: libthread_db.so.1 is not here\n";
            // SAFETY: bytes of ours; past the harness, which would swallow it.
            unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
            return;
        };
        sites.want(function);
        resolve_in(&sites, |_| Verdict::Alone);
        let found = sites.get(function).expect("it is known now");
        assert!(!found.own() && found.row().is_some());
        // SAFETY: loaded above, and nothing of it is in use.
        assert_eq!(unsafe { libc::dlclose(library) }, 0);
        if Objects::now().at(function).is_none() {
            resolve_in(&sites, |_| Verdict::Alone);
            assert!(sites.get(function).is_none(), "it is gone");
        }
    }

    #[test]
    fn a_site_comes_out_of_its_word_as_it_went_in() {
        use CallersBp::{Same, Saved, Unknown};
        let verdicts = [Verdict::Free, Verdict::Home, Verdict::Alone];
        for (base, cfa) in [(Base::Sp, 1), (Base::Bp, 2), (Base::Sp, MOST_WORDS)] {
            for bp in [Same, Unknown, Saved(2), Saved(MOST_WORDS)] {
                let row = Some(Row { base, cfa, bp });
                for verdict in verdicts {
                    let site = Site::new(verdict, true, row);
                    assert_eq!(
                        (site.verdict(), site.own(), site.row()),
                        (verdict, true, row)
                    );
                }
            }
        }
        assert_eq!(Site::new(Verdict::Alone, true, None).row(), None);
    }

    #[test]
    fn no_site_outside_the_executable_is_better_than_home() {
        let outside = Site::new(Verdict::Free, false, None);
        assert_eq!((outside.verdict(), outside.own()), (Verdict::Home, false));
        let outside = Site::new(Verdict::Alone, false, None);
        assert_eq!(outside.verdict(), Verdict::Alone);
    }

    #[test]
    fn what_is_wanted_is_found_once() {
        let sites = Sites::new();
        assert!(sites.want(10), "the first rings");
        assert!(!sites.want(11));
        let mut looked = Vec::new();
        let mut find = |pc| {
            looked.push(pc);
            Found::Site(site(pc as u32))
        };
        assert_eq!(sites.resolve(CHANGED, &mut find), 2);
        assert!(sites.want(10), "asked by one that was late");
        assert_eq!(sites.resolve(CHANGED, &mut find), 0);
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
        let find = |pc| Found::Site(site(pc as u32));
        let mut found = 0;
        while (1..10 * WISHES).any(|pc| sites.get(pc).is_none()) {
            let now = sites.resolve(CHANGED, find);
            assert!(now > 0 && now <= WISHES);
            found += now;
            for pc in (1..10 * WISHES).filter(|pc| sites.get(*pc).is_none()) {
                let _ = sites.want(pc);
            }
        }
        assert_eq!(found, 10 * WISHES - 1);
    }

    #[test]
    fn sites_of_what_was_unloaded_are_forgotten_and_others_stay() {
        let sites = Sites::new();
        let foreign = Site::new(Verdict::Alone, false, None);
        sites.resolve(Census::default(), |_| Found::NotNow);
        sites.insert(1, site(1));
        sites.insert(2, foreign);
        sites.insert(3, foreign);
        let replaced = Site::new(Verdict::Home, false, None);
        sites.resolve(CHANGED, |pc| match pc {
            2 => Found::Nothing,
            3 => Found::Site(replaced),
            _ => panic!("the executable stays"),
        });
        assert_eq!(sites.get(1), Some(site(1)));
        assert_eq!(sites.get(2), None);
        assert_eq!(sites.get(3), Some(replaced));
        assert!(sites.want(2));
        sites.resolve(CHANGED, |_| Found::Nothing);
        assert_eq!(sites.get(2), Some(foreign), "code that no object has");
    }

    #[test]
    fn a_library_that_comes_and_goes_does_not_fill_the_table() {
        let sites = Sites::new();
        for round in 0..100 {
            let census = Census {
                loaded: round,
                unloaded: round,
            };
            sites.resolve(census, |_| Found::Nothing);
            for pc in 0..200 {
                let pc = 1 + round as usize * 200 + pc;
                assert!(sites.insert(pc, Site::new(Verdict::Alone, false, None)));
            }
        }
        assert!(sites.current().unwrap().slots.len() <= 4 * FEW);
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

    fn census() -> Census {
        Writer::NEW.census
    }

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
            let find = |pc| Found::Site(site(pc as u32));
            let heard = rings.load(Acquire); // what comes of these is this:
            let mut found = sites.resolve(census(), find);
            for wisher in wishers {
                wisher.join().unwrap();
            }
            if rings.load(Acquire) > heard {
                found += sites.resolve(census(), find);
            }
            assert_eq!(found, 2, "a wish that nobody rang for");
        });
    }
}
