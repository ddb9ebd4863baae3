/** A metric of one command along commits: where it changed, and at which commit. */

import { useAnswer, useRunsVersion } from "../answers";
import { HistoryChart } from "../charts/history_chart";
import { ColumnPicker } from "../pieces/column_picker";
import { HistoryTable } from "../pieces/history_table";
import { Notes } from "../pieces/notes";
import { RunsHead } from "../pieces/runs_head";
import { TableView } from "../pieces/table";
import { ToneIcon } from "../pieces/tone";
import { VerdictView } from "../pieces/verdict";
import type { Place } from "../place";
import type { ChangeCard, HistoryPage } from "../schema";
import { useLink } from "../served";
import "./explore.css";
import "./history.css";
import { type Choose, type HistoryChoices, questionOf, useHistoryChoices } from "./history_choices";

export function HistoryView({ place }: { place: Place }) {
  const [choices, choose] = useHistoryChoices();
  const version = useRunsVersion(place.base);
  const { data, error } = useAnswer<HistoryPage>(
    `${place.base}/api/history?${questionOf(choices)}`,
    version,
  );
  return (
    <>
      <RunsHead
        place={place}
        current="History"
        filter={choices.q ?? ""}
        found={data?.found ?? ""}
        onFilter={(q) => choose({ q })}
      />
      {error !== null && (
        <section class="card empty" role="alert">
          <pre class="explore-error">{error}</pre>
          <p>
            <button type="button" class="plain" onClick={() => choose(NOTHING_CHOSEN)}>
              Show the usual history of these runs
            </button>
          </p>
        </section>
      )}
      {data !== null && error === null && (
        <History page={data} choices={choices} choose={choose} place={place} />
      )}
      {data === null && error === null && (
        <p class="waiting" role="status">
          Reading the runs…
        </p>
      )}
    </>
  );
}

const NOTHING_CHOSEN: Partial<HistoryChoices> = {
  ...{ metric: null, command: null, run: null, order: null, any_host: null, ignore: null },
};

interface Properties {
  page: HistoryPage;
  choices: HistoryChoices;
  choose: Choose;
  place: Place;
}

function History({ page, choices, choose, place }: Properties) {
  const title = `${page.metric} ${page.order === "commit" ? "along commits" : "in time"}`;
  return (
    <>
      <Pickers page={page} choices={choices} choose={choose} />
      <VerdictView verdict={page.verdict} />
      {page.points.length > 0 && (
        <section class="card part" aria-label={title} data-part tabIndex={-1}>
          <header>
            <h2>{title}</h2>
          </header>
          <HistoryChart page={page} base={place.base} title={title} />
          <p class="caption">{page.caption}</p>
        </section>
      )}
      {page.changes.length > 0 && (
        <section class="card part" aria-label="Changes" data-part tabIndex={-1}>
          <header>
            <h2>Changes</h2>
          </header>
          <ol class="changes" reversed start={page.changes.length}>
            {[...page.changes].reverse().map((change) => (
              <ChangeView key={change.place} change={change} />
            ))}
          </ol>
        </section>
      )}
      {page.tables.map((table) => (
        <section key={table.id} class="card part" aria-label={table.title} data-part tabIndex={-1}>
          <header>
            <h2>{table.title}</h2>
          </header>
          <TableView table={table} isNamed />
        </section>
      ))}
      {page.points.length > 0 && <HistoryTable page={page} base={place.base} />}
      {page.held_equal.length > 0 && (
        <section class="card part" aria-label="Held equal" data-part tabIndex={-1}>
          <header>
            <h2>Held equal</h2>
          </header>
          <dl class="change-facts">
            {page.held_equal.map(({ label, value }) => (
              <div key={label}>
                <dt>{label}</dt>
                <dd>{value}</dd>
              </div>
            ))}
          </dl>
        </section>
      )}
      <Notes title="Notes" lines={page.notes} />
    </>
  );
}

function Pickers({ page, choices, choose }: Omit<Properties, "place">) {
  return (
    <div class="pickers history-pickers">
      <label>
        Command{" "}
        <select
          value=""
          disabled={page.series.length < 2}
          onChange={(event) => choose({ run: event.currentTarget.value, command: null })}
        >
          {page.series.map(({ run, label }) => (
            <option key={run} value={run}>
              {label}
            </option>
          ))}
        </select>
      </label>
      <ColumnPicker
        label="Metric"
        choices={page.choices}
        chosen={[page.metric]}
        onChoose={([metric]) => choose({ metric: metric ?? null })}
      />
      {page.params.length > 0 && (
        <ColumnPicker
          label="May differ"
          choices={page.params}
          chosen={choices.ignore?.split(",") ?? []}
          isMany
          none="seeds and names alone"
          onChoose={(names) => choose({ ignore: names.join(",") || null })}
        />
      )}
      <label>
        Order{" "}
        <select
          value={choices.order ?? "commit"}
          onChange={(event) => choose({ order: event.currentTarget.value })}
        >
          <option value="commit">commits</option>
          <option value="time">time</option>
        </select>
      </label>
      <label>
        <input
          type="checkbox"
          checked={choices.any_host !== null}
          onChange={(event) => choose({ any_host: event.currentTarget.checked ? "1" : null })}
        />
        Any host
      </label>
    </div>
  );
}

function ChangeView({ change }: { change: ChangeCard }) {
  const link = useLink();
  return (
    <li class={`change tone-${change.tone}`}>
      <h3>
        <ToneIcon tone={change.tone} /> {change.status} {change.title}
      </h3>
      <p class="caption">{change.note}</p>
      <dl class="change-facts">
        {change.facts.map(({ label, words, link: to }, index) => {
          const href = link(to);
          return (
            <div key={index}>
              <dt>{label}</dt>
              <dd>{href === null ? words : <a href={href}>{words}</a>}</dd>
            </div>
          );
        })}
      </dl>
      <p>
        <a href={link(change.comparison) ?? ""}>Compare the runs before and after it</a>
      </p>
    </li>
  );
}
