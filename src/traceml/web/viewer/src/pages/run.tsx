/** One run, going on or over: the verdict first, then the diagnoses, then the cards. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { localTime } from "../numbers";
import { StepWindows, WindowContext } from "../charts/zoom";
import { LensContext } from "../pieces/lens";
import { Notes } from "../pieces/notes";
import { Output } from "../pieces/output";
import { Parts } from "../pieces/parts";
import { Rail } from "../pieces/rail";
import { VerdictView } from "../pieces/verdict";
import type { Head, RunPage, Verdict } from "../schema";

interface Properties {
  page: RunPage;
  /** Where finer values of some steps are asked for; `null` in a report. */
  detail: string | null;
  /** Where the history of the run's command is; `null` in a report. */
  history: string | null;
  /** The lens that was asked for. */
  lens: string | null;
  /** Asks for another; `null` where there is no server to ask. */
  onLens: ((id: string) => void) | null;
}

export function RunView({ page, detail, history, lens, onLens }: Properties) {
  const steps = useMemo(() => new StepWindows(detail, lens), [detail, lens]);
  const lenses = useMemo(
    () => ({ chosen: page.lens, all: page.lenses, choose: onLens }),
    [page.lens, page.lenses, onLens],
  );
  return (
    <WindowContext.Provider value={steps}>
      <Announcement verdict={page.verdict} />
      <HeadView head={page.head} history={history} />
      <VerdictView verdict={page.verdict} />
      <Rail rail={page.rail} parts={page.parts} verdict={page.verdict} />
      <LensContext.Provider value={lenses}>
        <Parts parts={page.parts} />
      </LensContext.Provider>
      <Output lines={page.output} />
      <Notes title="Notes" lines={page.notes} />
    </WindowContext.Provider>
  );
}

/** Tells those who do not see the page that the verdict has changed. */
function Announcement({ verdict: { status, why } }: { verdict: Verdict }) {
  const last = useRef(status);
  const [words, setWords] = useState("");
  useEffect(() => {
    if (last.current !== status) setWords(`The verdict is now ${status}. ${why}`);
    last.current = status;
  }, [status]);
  return (
    <p class="unseen" aria-live="polite">
      {words}
    </p>
  );
}

function HeadView({ head, history }: { head: Head; history: string | null }) {
  const facts: readonly (readonly [string, string | null])[] = [
    ["Elapsed", head.elapsed],
    ["Steps", head.steps_short],
    ["Throughput", head.throughput],
    ["Remaining", head.remaining],
    ["Ranks", head.ranks],
  ];
  return (
    <section class="head" aria-label="The run">
      <dl class="head-facts">
        {facts.map(
          ([label, value]) =>
            value && (
              <div key={label}>
                <dt>{label}</dt>
                <dd>{value}</dd>
              </div>
            ),
        )}
      </dl>
      {head.progress !== null && head.state === "live" && (
        <progress value={head.progress} max={1} aria-label={`Progress: ${head.steps}`} />
      )}
      <p class="command" title={head.command}>
        <span class="command-words">{head.command}</span>
        {history !== null && (
          <a class="history-link" href={history}>
            History
          </a>
        )}
        {head.started && (
          <span class="started" title={head.started}>
            {`started ${localTime(head.started_unix_s, head.started, true)}`}
          </span>
        )}
      </p>
    </section>
  );
}
