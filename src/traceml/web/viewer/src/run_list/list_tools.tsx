/** Beside the filter: how the runs are grouped, which columns there are, and the file of them. */

import type { RunsPage } from "../schema";
import { type Choose, type ListChoices, queryOf } from "./choices";

interface Properties {
  base: string;
  page: RunsPage;
  choices: ListChoices;
  choose: Choose;
  onColumns: () => void;
}

export function ListTools({ base, page, choices, choose, onColumns }: Properties) {
  const isGrouped = choices.group !== "";
  const isOther = isGrouped && !page.groupings.some(({ key }) => key === choices.group);
  return (
    <div class="list-tools">
      <SortBy page={page} choices={choices} choose={choose} />
      <label>
        Group by{" "}
        <select
          value={choices.group}
          onChange={(event) =>
            choose({ group: event.currentTarget.value, sort: "", columns: "", isAll: false })
          }
        >
          <option value="">nothing</option>
          {isOther && <option value={choices.group}>{choices.group}</option>}
          {page.groupings.map(({ key, label }) => (
            <option key={key} value={key}>
              {label}
            </option>
          ))}
        </select>
      </label>
      {!isGrouped && (
        <button type="button" class="plain" onClick={onColumns}>
          Columns…
        </button>
      )}
      <a class="plain" href={`${base}/explore?${new URLSearchParams({ q: choices.filter })}`}>
        Explore
      </a>
      <a class="plain" href={`${base}/history?${new URLSearchParams({ q: choices.filter })}`}>
        History
      </a>
      <a class="plain" href={exportAddress(base, page, choices)} download="runs.csv">
        CSV
      </a>
    </div>
  );
}

/** All that match, with the columns that are shown. */
function exportAddress(base: string, page: RunsPage, choices: ListChoices): string {
  const query = queryOf({ ...choices, baseline: "" });
  query.delete("group");
  if (choices.group !== "") query.set("group_by", choices.group);
  else query.set("columns", page.columns.map(({ key }) => key).join(","));
  return `${base}/export.csv?${query}`;
}

/** Where the list has no head to click on: on a phone. */
function SortBy({ page, choices, choose }: Pick<Properties, "page" | "choices" | "choose">) {
  const isDown = choices.sort === "" || choices.sort.startsWith("-");
  const key = choices.sort === "" ? "started" : choices.sort.replace(/^-/, "");
  const set = (next: string, down: boolean): void =>
    choose({ sort: next === "started" && down ? "" : `${down ? "-" : ""}${next}` });
  return (
    <div class="sort-by">
      <label>
        Sort by{" "}
        <select value={key} onChange={(event) => set(event.currentTarget.value, isDown)}>
          {!page.columns.some((column) => column.key === key) && (
            <option value={key}>{choices.sort === "" ? "the usual" : key}</option>
          )}
          {page.columns
            .filter((column) => column.can_sort)
            .map((column) => (
              <option key={column.key} value={column.key}>
                {column.label}
              </option>
            ))}
        </select>
      </label>
      <button
        type="button"
        class="plain"
        onClick={() => set(key, !isDown)}
        aria-label={isDown ? "Downwards; change to upwards" : "Upwards; change to downwards"}
      >
        {isDown ? "↓" : "↑"}
      </button>
    </div>
  );
}
