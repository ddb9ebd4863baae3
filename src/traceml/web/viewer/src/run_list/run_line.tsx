/** One run in the list. */

import { localTime } from "../numbers";
import { runAddress } from "../place";
import { Badge, StatePill } from "../pieces/tone";
import type { ListColumn, ListRow } from "../schema";
import { still } from "../still";

/** What can be done with a row; the same object as long as the list is there. */
export interface RowActions {
  base: string;
  select: (name: string, index: number | null, isRange: boolean) => void;
  setBaseline: (name: string) => void;
  filterByTag: (tag: string) => void;
  editTags: (row: ListRow) => void;
}

interface Properties {
  row: ListRow;
  /** Its place in the list; `null` for the baseline that stays on top. */
  index: number | null;
  columns: readonly ListColumn[];
  isPhone: boolean;
  isSelected: boolean;
  isBaseline: boolean;
  actions: RowActions;
}

export const RunLine = still(function RunLine(properties: Properties) {
  const { row, index, columns, isPhone, isSelected, isBaseline, actions } = properties;
  const pinned = index === null ? " pinned" : "";
  return (
    <tr
      class={`run-line${isSelected ? " is-selected" : ""}${pinned}`}
      {...(index === null
        ? {}
        : { "aria-rowindex": index + 2, "data-index": index, "data-name": row.name })}
    >
      <td class="pick">
        <label>
          <input
            type="checkbox"
            checked={isSelected}
            aria-label={index === null ? `Select the baseline ${row.name}` : `Select ${row.name}`}
            onClick={(event) => actions.select(row.name, index, event.shiftKey)}
          />
        </label>
      </td>
      {isPhone ? (
        <PhoneCells {...properties} />
      ) : (
        columns.map((column, place) => (
          <Cell
            key={column.key}
            column={column}
            value={row.cells[place] ?? null}
            row={row}
            isBaseline={isBaseline}
            actions={actions}
          />
        ))
      )}
    </tr>
  );
});

interface CellProperties {
  column: ListColumn;
  value: string | number | null;
  row: ListRow;
  isBaseline: boolean;
  actions: RowActions;
}

function Cell({ column, value, row, isBaseline, actions }: CellProperties) {
  switch (column.kind) {
    case "name":
      return <NameCell row={row} isBaseline={isBaseline} actions={actions} />;
    case "status":
      return (
        <td class="kind-status">
          <StatePill state={row.state}>{row.state}</StatePill>
        </td>
      );
    case "verdict":
      return (
        <td class="kind-verdict" title={row.why}>
          <Badge tone={row.severity}>{String(value ?? "n/a")}</Badge>{" "}
          <span class="runs-why">{row.why}</span>
        </td>
      );
    case "tags":
      return (
        <td class="kind-tags">
          <Tags row={row} actions={actions} />
        </td>
      );
    case "moment":
      return (
        <td class="kind-moment" title={exactTime(value)}>
          {typeof value === "number" ? localTime(value, "n/a") : ""}
        </td>
      );
    default:
      return (
        <td class={`kind-${column.kind}`} title={value === null ? undefined : String(value)}>
          {value}
        </td>
      );
  }
}

function exactTime(value: string | number | null): string {
  return typeof value === "number" ? localTime(value, "n/a", true) : "";
}

function NameCell({ row, isBaseline, actions }: Omit<CellProperties, "column" | "value">) {
  return (
    <th scope="row" class="kind-name">
      <span class="name-line">
        <a href={runAddress(actions.base, row.name)} title={row.name}>
          {row.name}
        </a>
        {isBaseline && <span class="baseline-mark">baseline</span>}
        {row.note !== null && (
          <span class="note-mark" title={row.note} role="img" aria-label="Has a note">
            ✎
          </span>
        )}
        <span class="row-tools">
          <button
            type="button"
            class="row-tool"
            title={isBaseline ? "No longer the baseline" : "Keep on top as the baseline"}
            aria-label={`${isBaseline ? "Unpin" : "Pin"} ${row.name} as the baseline`}
            aria-pressed={isBaseline}
            onClick={() => actions.setBaseline(isBaseline ? "" : row.name)}
          >
            ⚑
          </button>
          <button
            type="button"
            class="row-tool"
            title="Tags and note"
            aria-label={`Tags and note of ${row.name}`}
            onClick={() => actions.editTags(row)}
          >
            #
          </button>
        </span>
      </span>
    </th>
  );
}

function Tags({ row, actions }: { row: ListRow; actions: RowActions }) {
  return (
    <span class="tag-list">
      {row.tags.map((tag) => (
        <button
          key={tag}
          type="button"
          class="tag"
          title={`Only runs with the tag ${tag}`}
          onClick={() => actions.filterByTag(tag)}
        >
          {tag}
        </button>
      ))}
    </span>
  );
}

const PHONE_ORDER = ["number", "text", "tags", "moment"] as const;

/** Two lines: the name and what was found, then the other columns one after the other. */
function PhoneCells({ row, columns, isBaseline, actions }: Properties) {
  const place = columns.findIndex((column) => column.kind === "verdict");
  const verdict = place === -1 ? null : row.cells[place];
  return (
    <th scope="row" class="phone-cell">
      <span class="phone-first">
        <a href={runAddress(actions.base, row.name)}>{row.name}</a>
        {isBaseline && <span class="baseline-mark">baseline</span>}
        <StatePill state={row.state}>{row.state}</StatePill>
      </span>
      <span class="phone-second">
        {verdict !== null && verdict !== undefined && (
          <Badge tone={row.severity}>{String(verdict)}</Badge>
        )}
        {PHONE_ORDER.map((kind) =>
          columns.map((column, at) =>
            column.kind === kind ? (
              <PhoneFact key={column.key} column={column} value={row.cells[at] ?? null} row={row} />
            ) : null,
          ),
        )}
      </span>
    </th>
  );
}

function PhoneFact({ column, value, row }: Pick<CellProperties, "column" | "value" | "row">) {
  if (column.kind === "tags") {
    return row.tags.length > 0 ? <span>#{row.tags.join(" #")}</span> : null;
  }
  if (value === null || value === "") return null;
  const words = typeof value === "number" ? localTime(value, "n/a") : value;
  return (
    <span>
      <span class="phone-label">{column.label}</span> {words}
    </span>
  );
}
