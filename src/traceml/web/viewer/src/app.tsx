/** The page: what came with it or what the server sends, drawn as what it is. */

import { useCallback, useEffect, useState } from "preact/hooks";
import { readChoice, rememberedList, writeChoices } from "./address";
import { useKeys } from "./keys";
import { fetched, Follower, type Live, NOTHING } from "./live";
import { ComparisonView } from "./pages/comparison";
import { ManyRunsView } from "./pages/many_runs";
import { ExploreView } from "./pages/explore";
import { HistoryView } from "./pages/history";
import { RunView } from "./pages/run";
import { RunsView } from "./pages/runs";
import { TopBar } from "./pieces/bar";
import { Banner } from "./pieces/banner";
import { Help } from "./pieces/help";
import { pathOf, type Place, reportOf } from "./place";
import type { Page } from "./schema";
import { BaseContext } from "./served";

export function App({ place }: { place: Place }) {
  const [lens, setLens] = useState(() => readChoice("lens"));
  const live = useLive(place, lens);
  const choose = useCallback((id: string) => {
    writeChoices({ lens: id });
    setLens(id);
  }, []);
  const [isHelping, setHelping] = useState(false);
  const isList = isListOf(place);
  const [isListLost, setListLost] = useState(false);
  const home = place.isServed ? `${place.base}/${rememberedList()}` : null;
  const help = useCallback(() => setHelping(true), []);
  useKeys(home, help);
  useTitle(ownTitle(place) ?? (live.page && nameOf(live.page)));
  useAnchor(live.page !== null);
  return (
    <>
      <a class="skip" href="#main">
        Skip to the verdict
      </a>
      <TopBar
        page={live.page}
        home={home}
        report={reportOf(place, live.page)}
        name={ownTitle(place)}
        isLost={live.isLost || live.error !== null}
        onHelp={help}
      />
      <Banner live={isList ? { ...live, isLost: isListLost } : live} />
      <main id="main" tabIndex={-1}>
        <BaseContext.Provider value={place.isServed ? place.base : null}>
          {isList ? (
            <RunsView base={place.base} onLost={setListLost} />
          ) : (
            <Shown live={live} place={place} lens={lens} onLens={choose} />
          )}
        </BaseContext.Provider>
      </main>
      <Help isOpen={isHelping} onClose={() => setHelping(false)} />
    </>
  );
}

interface ShownProperties {
  live: Live;
  place: Place;
  /** Whose step a run's page shows; `null`: whatever the server thinks best. */
  lens: string | null;
  onLens: (id: string) => void;
}

function Shown({ live: { page, error }, place, lens, onLens }: ShownProperties) {
  if (isAt(place, "/explore")) return <ExploreView place={place} />;
  if (isAt(place, "/history")) return <HistoryView place={place} />;
  if (page === null) return error === null ? <Waiting /> : <Refused error={error} place={place} />;
  switch (page.type) {
    case "run":
      return (
        <RunView
          page={page}
          detail={detailOf(place)}
          history={historyOf(place)}
          lens={lens}
          onLens={place.isServed ? onLens : null}
        />
      );
    case "comparison":
      return <ComparisonView page={page} />;
    case "many":
      return <ManyRunsView page={page} />;
  }
}

/** By the page's own address: a folder may have another name than the run had when it began. */
function detailOf(place: Place): string | null {
  return place.isServed ? `${place.base}/api${pathOf(place)}/detail` : null;
}

function historyOf(place: Place): string | null {
  if (!place.isServed) return null;
  return `${place.base}/history?run=${pathOf(place).slice("/runs/".length)}`;
}

function isAt(place: Place, path: string): boolean {
  return place.isServed && pathOf(place) === path;
}

function Waiting() {
  return (
    <p class="waiting" role="status">
      Reading the run…
    </p>
  );
}

function Refused({ error, place }: { error: string; place: Place }) {
  return (
    <section class="card empty" role="alert">
      <h1>This cannot be shown</h1>
      <p>{error}</p>
      <p>
        <a href={`${place.base}/`}>All runs</a>
      </p>
    </section>
  );
}

function nameOf(page: Page): string {
  switch (page.type) {
    case "run":
      return page.head.name;
    case "comparison":
      return `${page.a} against ${page.b}`;
    case "many":
      return page.title;
  }
}

function useTitle(name: string | null): void {
  const title = name === null ? "TraceML" : `${name} · TraceML`;
  useEffect(() => void (document.title = title), [title]);
}

/** An address may name a part; the browser looked for it before there was one. */
function useAnchor(isThere: boolean): void {
  useEffect(() => {
    const id = window.location.hash.slice(1);
    const part = isThere && id !== "" ? document.getElementById(id) : null;
    part?.focus({ preventScroll: true }); // the keys go on from there
    part?.scrollIntoView();
  }, [isThere]);
}

/** What pages are called that ask for their data themselves; `null`: it is one of the others. */
function ownTitle(place: Place): string | null {
  if (isListOf(place)) return "Runs";
  if (isAt(place, "/explore")) return "Explore";
  return isAt(place, "/history") ? "History" : null;
}

/** The list of runs asks for its rows by itself, a part at a time. */
function isListOf(place: Place): boolean {
  return place.isServed && place.page === null && pathOf(place) === "/";
}

/** The page's data over time: enclosed, asked for once, or followed. */
function useLive(place: Place, lens: string | null): Live {
  const [live, setLive] = useState<Live>({ ...NOTHING, page: place.page });
  useEffect(() => {
    if (!place.isServed || ownTitle(place) !== null) return;
    const path = pathOf(place);
    if (path === "/compare") {
      if (place.page === null) void askForComparison(place, setLive);
      return;
    }
    const query = lens !== null ? `?lens=${encodeURIComponent(lens)}` : "";
    const events = `${place.base}/api/events?page=${encodeURIComponent(path + query)}`;
    const json = `${place.base}/api${path}${query}`;
    return new Follower(events, json, live.page, setLive).start();
  }, [place, lens]);
  return live;
}

async function askForComparison(place: Place, see: (live: Live) => void): Promise<void> {
  try {
    const page = await fetched<Page>(`${place.base}/api/compare${window.location.search}`);
    see({ ...NOTHING, page });
  } catch (error) {
    see({ ...NOTHING, error: (error as Error).message });
  }
}
