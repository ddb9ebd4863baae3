/** The layers of a model: as a tree, as a list, or as a flame view; found by words. */

import { useEffect, useMemo, useState } from "preact/hooks";
import { readChoice, writeChoices } from "../address";
import type { LayerTree } from "../schema";
import { LayerFlame } from "./layer_flame";
import { Below, firstOpen, shownRows, type Sorting } from "./layer_rows";
import { LayerTable } from "./layer_table";
import "./layers.css";

type View = "tree" | "list" | "flame";

const VIEWS: readonly { id: View; label: string; title: string }[] = [
  { id: "tree", label: "Tree", title: "By name; a row counts everything below it" },
  { id: "list", label: "List", title: "Each layer by itself, the longest first" },
  { id: "flame", label: "Flame", title: "As wide as the time that each takes" },
];

export function LayersView({ figure }: { figure: LayerTree }) {
  const [view, setView] = useState<View>(() => viewNamed(readChoice("layer-view")));
  const [words, setWords] = useState(() => readChoice("layer") ?? "");
  const [isGrouped, setGrouped] = useState(true);
  const [sorting, setSorting] = useState<Sorting | null>(null);
  const data = (isGrouped && figure.grouped) || figure.single;
  const below = useMemo(() => new Below(data.rows), [data]);
  const [open, setOpen] = useState(() => firstOpen(data.rows, below));
  useEffect(() => setOpen(firstOpen(data.rows, below)), [isGrouped]);

  const isTree = view === "tree";
  const used = sorting ?? { id: isTree ? "total" : "own", isAscending: false };
  const shown = useMemo(
    () => shownRows(data, below, { isTree, words, sorting: used, open }),
    [data, below, isTree, words, used.id, used.isAscending, open],
  );
  const choose = (next: View): void => {
    writeChoices({ "layer-view": next === "tree" ? null : next });
    setSorting(null);
    setView(next);
  };
  const search = (text: string): void => {
    writeChoices({ layer: text });
    setWords(text);
  };
  const toggle = (name: string, isOpen: boolean): void => {
    const next = new Set(open);
    if (isOpen) next.add(name);
    else next.delete(name);
    setOpen(next);
  };
  return (
    <div class="layers">
      <div class="layer-tools">
        <div class="layer-views" role="group" aria-label="How layers are shown">
          {VIEWS.filter(({ id }) => id !== "flame" || figure.flames.length > 0).map((one) => (
            <button
              key={one.id}
              type="button"
              class="plain"
              title={one.title}
              aria-pressed={view === one.id}
              onClick={() => choose(one.id)}
            >
              {one.label}
            </button>
          ))}
        </div>
        <input
          type="search"
          value={words}
          placeholder="Find a layer or a class"
          aria-label="Find a layer or a class"
          onInput={(event) => search(event.currentTarget.value)}
        />
        {figure.grouped && (
          <label>
            <input
              type="checkbox"
              checked={isGrouped}
              onChange={(event) => setGrouped(event.currentTarget.checked)}
            />
            Repeated layers as one
          </label>
        )}
        {isTree && words === "" && (
          <span class="layer-folds">
            <button
              type="button"
              class="quiet"
              onClick={() => setOpen(new Set(data.rows.map(({ name }) => name)))}
            >
              Open all
            </button>
            <button
              type="button"
              class="quiet"
              onClick={() => setOpen(new Set())}
            >
              Close all
            </button>
          </span>
        )}
      </div>
      {view === "flame" ? (
        <LayerFlame data={data} below={below} flames={figure.flames} bars={figure.bars} words={words} />
      ) : shown.length === 0 ? (
        <p class="note">No layer matches “{words}”.</p>
      ) : (
        <LayerTable
          data={data}
          bars={figure.bars}
          shown={shown}
          isTree={isTree}
          sorting={used}
          onSort={setSorting}
          onToggle={toggle}
        />
      )}
    </div>
  );
}

function viewNamed(name: string | null): View {
  return VIEWS.find(({ id }) => id === name)?.id ?? "tree";
}
