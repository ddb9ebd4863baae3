/** Charts over many runs: parallel coordinates, scatter, groups, and what mattered. */

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useAnswer, useRunsVersion } from "../answers";
import { ColourKey } from "../charts/colour_key";
import { ContourView } from "../charts/contour";
import { CurveTools } from "../charts/curve_tools";
import { EstimatesView } from "../charts/estimates";
import { FigureView } from "../charts/figure";
import { leftOutWords, type OnBrush, ParallelView } from "../charts/parallel";
import { runColours } from "../charts/run_colours";
import { type Scale, scaleOf, spreadOut } from "../charts/scales";
import { ScatterView } from "../charts/scatter";
import { ValueGridView } from "../charts/value_grid";
import { AxisRanges } from "../pieces/axis_ranges";
import { BrushBar } from "../pieces/brush_bar";
import { brushed, type Brushes, filterOf, withBrush } from "../pieces/brushes";
import { ColumnPicker } from "../pieces/column_picker";
import { Notes } from "../pieces/notes";
import { RunsAsTable } from "../pieces/runs_as_table";
import { RunsHead, viewAddress } from "../pieces/runs_head";
import { type Place, runAddress } from "../place";
import type { Exploration, ExploredColumn, GroupCurves, WhatMatteredPage } from "../schema";
import { useTheme } from "../theme";
import "./explore.css";
import { type Choose, type ExploreChoices, questionOf, useExploreChoices } from "./explore_choices";

const SCATTER_ROOM = 0.04;

export function ExploreView({ place }: { place: Place }) {
  const [choices, choose] = useExploreChoices();
  const names = ["q", "metric", "group", "axes", "x", "y", "color", "size"] as const;
  const version = useRunsVersion(place.base);
  const { data, error } = useAnswer<Exploration>(
    `${place.base}/api/explore?${questionOf(choices, names)}`,
    version,
  );
  return (
    <>
      <RunsHead
        place={place}
        current="Explore"
        filter={choices.q}
        found={data?.found ?? ""}
        onFilter={(q) => choose({ q, brushes: [] })}
      />
      {error !== null && (
        <section class="card empty" role="alert">
          <pre class="explore-error">{error}</pre>
          <p>
            <button type="button" class="plain" onClick={() => choose(NOTHING_CHOSEN)}>
              Show the usual charts of these runs
            </button>
          </p>
        </section>
      )}
      {data !== null && error === null && (
        <Charts page={data} choices={choices} choose={choose} place={place} />
      )}
      {data === null && error === null && (
        <p class="waiting" role="status">
          Reading the runs…
        </p>
      )}
    </>
  );
}

const NOTHING_CHOSEN: Partial<ExploreChoices> = {
  ...{ metric: null, group: null, axes: null, x: null, y: null, color: null, size: null },
  ...{ down: null, across: null, brushes: [] },
};

interface ChartsProperties {
  page: Exploration;
  choices: ExploreChoices;
  choose: Choose;
  place: Place;
}

/** Columns and what is marked on them, as all charts of the page use them. */
interface Shared extends ChartsProperties {
  columns: ReadonlyMap<string, ExploredColumn>;
  brushes: Brushes;
  /** The runs that the brushes let through; `null`: there is no brush. */
  chosen: Uint8Array | null;
  /** The same as it was before a hand began to drag. */
  settled: Uint8Array | null;
  isDragging: boolean;
  isLog: (column: ExploredColumn) => boolean;
  onBrush: OnBrush;
  onOpen: (run: number) => void;
}

function Charts({ page, choices, choose, place }: ChartsProperties) {
  const columns = useMemo(() => new Map(page.columns.map((one) => [one.name, one])), [page]);
  // While a hand drags, the address waits: browsers refuse to have it written at every move.
  const [dragged, setDragged] = useState<Brushes | null>(null);
  const brushes = dragged ?? choices.brushes;
  const chosen = useMemo(
    () => brushed(brushes, columns, page.names.length),
    [brushes, columns, page],
  );
  const settled = useMemo(
    () => brushed(choices.brushes, columns, page.names.length),
    [choices.brushes, columns, page],
  );
  if (page.names.length === 0) {
    return (
      <section class="card empty">
        {page.advice.map((words) => (
          <p key={words}>{words}</p>
        ))}
        <Notes title="Notes" lines={page.notes} />
      </section>
    );
  }
  const filter = filterOf(page.filter, brushes, columns);
  const shared: Shared = {
    ...{ page, choices, choose, place, columns, brushes, chosen, settled },
    isDragging: dragged !== null,
    isLog: (column) =>
      choices.log.includes(column.name) ||
      (column.is_log && !choices.linear.includes(column.name)),
    onBrush: (name, brush, isFinal) => {
      const next = withBrush(choices.brushes, name, brush);
      setDragged(isFinal ? null : next);
      if (isFinal) choose({ brushes: next });
    },
    onOpen: (run) => window.location.assign(runAddress(place.base, page.names[run]!)),
  };
  return (
    <>
      {page.advice.map((words) => (
        <p key={words} class="card empty explore-advice">
          {words}
        </p>
      ))}
      <div class="pickers">
        <ColumnPicker
          label="Metric"
          choices={page.choices}
          chosen={page.metric === null ? [] : [page.metric]}
          onChoose={([metric]) => choose({ metric: metric ?? null })}
        />
        <ColumnPicker
          label="Groups by"
          choices={page.choices}
          chosen={page.group}
          isMany
          none="whatever shows most"
          onChoose={(names) => choose({ group: names.join(",") || null })}
        />
      </div>
      <ParallelCard {...shared} />
      <ScatterCard {...shared} />
      <GroupsCard {...shared} />
      <WhatMatteredCard {...shared} />
      <Notes title="Notes" lines={page.notes} />
      {chosen !== null && (
        <BrushBar
          count={chosen.reduce((sum, one) => sum + one, 0)}
          of={page.names.length}
          filter={filter}
          list={viewAddress(place, "/", filter)}
          onKeep={() => choose({ q: filter, brushes: [] })}
          onClear={() => choose({ brushes: [] })}
        />
      )}
    </>
  );
}

/** Whether an element has been in sight: what takes seconds to compute is asked for then. */
function useSeen(): [RefObject<HTMLElement | null>, boolean] {
  const place = useRef<HTMLElement>(null);
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    const sight = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) setSeen(true);
    });
    sight.observe(place.current!);
    return () => sight.disconnect();
  }, []);
  return [place, isSeen];
}

interface CardProperties {
  id: string;
  title: string;
  note?: string;
  place?: RefObject<HTMLElement | null>;
  children: ComponentChildren;
}

function Card({ id, title, note, place, children }: CardProperties) {
  return (
    <section
      ref={place ?? null}
      class="card part"
      id={id}
      data-part
      tabIndex={-1}
      aria-labelledby={`${id}-title`}
    >
      <header>
        <h2 id={`${id}-title`}>{title}</h2>
        {note && <span class="note">{note}</span>}
      </header>
      {children}
    </section>
  );
}

function useScales(shared: Shared, names: readonly (string | null)[], room: number): Scale[] {
  const { columns, isLog, choices } = shared;
  return useMemo(
    () =>
      names.flatMap((name) => {
        const column = name === null ? undefined : columns.get(name);
        return column === undefined ? [] : [scaleOf(column, isLog(column), room)];
      }),
    [columns, names.join("\n"), choices.log, choices.linear, room],
  );
}

function useColours(shared: Shared, name: string | null) {
  const theme = useTheme();
  const { columns, isLog, page } = shared;
  const column = name === null ? null : (columns.get(name) ?? null);
  const bent = column !== null && isLog(column);
  return useMemo(
    () => runColours(column, page.names.length, bent, theme),
    [column, page, bent, theme],
  );
}

function setLog({ choices, choose }: Shared, name: string, isLog: boolean): void {
  const without = (list: readonly string[]): string[] => list.filter((one) => one !== name);
  choose({
    log: isLog ? [...without(choices.log), name] : without(choices.log),
    linear: isLog ? without(choices.linear) : [...without(choices.linear), name],
  });
}

function ParallelCard(shared: Shared) {
  const { page, chosen, settled, brushes, isDragging, choose, columns, place, onBrush, onOpen } = shared;
  const straight = useScales(shared, page.axes, 0);
  const scales = useMemo(() => straight.map(spreadOut), [straight]);
  const colours = useColours(shared, page.metric);
  const shown = page.axes.flatMap((name) => columns.get(name) ?? []);
  return (
    <Card id="parallel" title="Parallel coordinates" note="Drag along an axis to mark runs">
      <div class="pickers">
        <ColumnPicker
          label="Axes"
          choices={page.choices}
          chosen={page.axes}
          isMany
          onChoose={(names) => choose({ axes: names.join(",") })}
        />
        <ColourKey colours={colours} />
      </div>
      {scales.length === 0 ? (
        <p class="caption">Choose some axes.</p>
      ) : (
        <ParallelView
          scales={scales}
          names={page.names}
          colours={colours}
          chosen={chosen}
          brushes={brushes}
          isDragging={isDragging}
          onBrush={onBrush}
          onLog={(name, isLog) => setLog(shared, name, isLog)}
          onMove={(name, by) => choose({ axes: moved(page.axes, name, by).join(",") })}
          onOpen={onOpen}
        />
      )}
      <LeftOut scales={scales} />
      <AxisRanges
        columns={shown}
        brushes={brushes}
        onBrush={(name, brush) => onBrush(name, brush, true)}
      />
      <RunsAsTable
        title="Parallel coordinates"
        names={page.names}
        columns={shown}
        chosen={settled}
        base={place.base}
      />
    </Card>
  );
}

/** The names in another order: one of them changes places with its neighbour. */
function moved(names: readonly string[], name: string, by: -1 | 1): string[] {
  const found = [...names];
  const place = found.indexOf(name);
  const other = found[place + by];
  if (other !== undefined) [found[place], found[place + by]] = [other, name];
  return found;
}

function LeftOut({ scales }: { scales: readonly Scale[] }) {
  const words = leftOutWords(scales);
  return words.length === 0 ? null : <p class="caption">{words.join(" ")}</p>;
}

function ScatterCard(shared: Shared) {
  const { page, settled, choices, choose, columns, place, onOpen } = shared;
  const scales = useScales(shared, [page.x, page.y], SCATTER_ROOM);
  const colours = useColours(shared, page.color);
  const size = page.size === null ? null : (columns.get(page.size) ?? null);
  const named = [page.x, page.y, page.color, page.size, page.metric];
  const told = [...new Set(named)].flatMap((name) => (name && columns.get(name)) || []);
  const [x, y] = page.x === page.y && scales[0] ? [scales[0], scales[0]] : scales;
  const one =
    (name: "x" | "y" | "color" | "size") =>
    ([column]: readonly string[]): void =>
      choose({ [name]: column ?? "" });
  const chosenOne = (name: string | null): string[] => (name === null ? [] : [name]);
  return (
    <Card id="scatter" title="Scatter" note="Drag a rectangle to mark runs">
      <div class="pickers">
        <ColumnPicker label="Across" choices={page.choices} chosen={chosenOne(page.x)} onChoose={one("x")} />
        <LogBox shared={shared} scale={x} />
        <ColumnPicker label="Up" choices={page.choices} chosen={chosenOne(page.y)} onChoose={one("y")} />
        <LogBox shared={shared} scale={y} />
        <ColumnPicker
          label="Colour"
          choices={page.choices}
          chosen={chosenOne(page.color)}
          none="none"
          onChoose={one("color")}
        />
        <ColumnPicker
          label="Size"
          choices={page.choices}
          chosen={chosenOne(page.size)}
          none="none"
          onChoose={one("size")}
        />
      </div>
      <ColourKey colours={colours} />
      {x === undefined || y === undefined ? (
        <p class="caption">Choose what lies across and up.</p>
      ) : (
        <ScatterView
          x={x}
          y={y}
          size={size?.kind === "category" ? null : size}
          names={page.names}
          colours={colours}
          chosen={settled}
          front={page.front}
          told={told}
          onSelect={(brushes) =>
            choose({
              brushes: brushes.reduce(
                (found, brush) => withBrush(found, brush.name, brush),
                choices.brushes,
              ),
            })
          }
          onOpen={onOpen}
        />
      )}
      {page.front_words && <p class="caption">{page.front_words}</p>}
      {size?.kind === "category" && (
        <p class="caption">{size.label} holds words: it cannot be a size.</p>
      )}
      <LeftOut scales={[...new Set(scales)]} />
      <RunsAsTable title="Scatter" names={page.names} columns={told} chosen={settled} base={place.base} />
    </Card>
  );
}

function LogBox({ shared, scale }: { shared: Shared; scale: Scale | undefined }) {
  if (scale === undefined || scale.column.kind !== "number") return null;
  return (
    <label class="log-box">
      <input
        type="checkbox"
        checked={scale.isLog}
        aria-label={`Logarithmic: ${scale.column.label}`}
        onChange={(event) => setLog(shared, scale.column.name, event.currentTarget.checked)}
      />
      log
    </label>
  );
}

function GroupsCard({ page, choices, choose, place }: Shared) {
  const names = ["q", "metric", "group", "band"] as const;
  const { data, error, isLoading } = useAnswer<GroupCurves>(
    `${place.base}/api/explore/curves?${questionOf(choices, names)}`,
  );
  return (
    <Card id="groups" title="By group">
      {page.bars === null && page.group.length === 0 && (
        <p class="caption">
          No parameter has a few values that several runs share: choose what to group by.
        </p>
      )}
      <div class="figures">
        {page.bars && <EstimatesView figure={page.bars} />}
        <div class="curves-of-groups">
          {data?.lines && (
            <>
              <CurveTools>
                <label>
                  Band{" "}
                  <select
                    class="band"
                    value={data.band}
                    onChange={(event) => choose({ band: event.currentTarget.value })}
                  >
                    <option value="range">lowest to highest</option>
                    <option value="interval">95 % interval</option>
                  </select>
                </label>
              </CurveTools>
              <FigureView figure={data.lines} />
            </>
          )}
          {data?.notes.map((words) => (
            <p key={words} class="caption">
              {words}
            </p>
          ))}
          {error !== null && <p class="caption">{error}</p>}
          {isLoading && data === null && <p class="caption">Reading histories…</p>}
        </div>
      </div>
    </Card>
  );
}

function WhatMatteredCard({ page, choices, choose, place }: Shared) {
  const names = ["q", "metric", "down", "across"] as const;
  const [card, isSeen] = useSeen();
  const address = `${place.base}/api/explore/what-mattered?${questionOf(choices, names)}`;
  const { data, error, isLoading } = useAnswer<WhatMatteredPage | null>(isSeen ? address : null);
  const params = page.choices.filter(({ section }) => section === "Parameters");
  return (
    <Card id="what-mattered" title={data?.title ?? "What mattered"} place={card}>
      {isLoading && (
        <p class="caption" role="status">
          Computing what mattered; with many runs this takes some seconds…
        </p>
      )}
      {error !== null && <p class="caption">{error}</p>}
      {data?.warnings.map((words) => (
        <p key={words} class="caption tone-warn warning">
          {words}
        </p>
      ))}
      {data && (
        <>
          <div class="figures">
            {data.importance && <EstimatesView figure={data.importance} />}
            {data.correlation && <EstimatesView figure={data.correlation} />}
          </div>
          {data.grid && (
            <>
              <div class="pickers">
                <ColumnPicker
                  label="Down"
                  choices={params}
                  chosen={data.down === null ? [] : [data.down]}
                  onChoose={([down]) => choose({ down: down ?? null, across: data.across })}
                />
                <ColumnPicker
                  label="Across"
                  choices={params}
                  chosen={data.across === null ? [] : [data.across]}
                  onChoose={([across]) => choose({ across: across ?? null, down: data.down })}
                />
              </div>
              <div class="figures">
                {data.contour && <ContourView figure={data.contour} />}
                <ValueGridView figure={data.grid} />
              </div>
            </>
          )}
          {data.along.length > 0 && (
            <>
              <h3>Along each parameter</h3>
              <div class="figures along">
                {data.along.map((figure) => (
                  <EstimatesView key={figure.id} figure={figure} />
                ))}
              </div>
            </>
          )}
          {data.notes.map((words) => (
            <p key={words} class="caption">
              {words}
            </p>
          ))}
        </>
      )}
    </Card>
  );
}
