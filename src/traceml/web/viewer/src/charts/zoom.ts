/** The steps that one looks at: one window for all figures of a run, and its finer values. */

import { createContext } from "preact";
import { useContext, useEffect, useState } from "preact/hooks";
import { readChoice, writeChoices } from "../address";
import { fetched } from "../live";
import type { Figure, Heatmap, Lines, Series, StepAxis } from "../schema";

export type Range = readonly [first: number, last: number];
export type Zoomed = Lines | Heatmap;

const DEBOUNCE_MS = 200;
const MARGIN = 0.25; // of the window, on either side: a short pan needs no new values

export class StepWindow {
  range: Range | null = null;
  error: string | null = null;
  isLoading = false;
  private finer = new Map<string, Zoomed>();
  private readonly joined = new Map<string, { whole: Zoomed; finer: Zoomed; both: Zoomed }>();
  private known: Range | null = null;
  private timer = 0;
  private request: AbortController | null = null;
  private readonly listeners = new Set<() => void>();

  /** `address`: where finer values are asked for; `null` where no server stands behind the page. */
  constructor(
    private readonly address: string | null,
    private readonly axis: StepAxis,
    private readonly lens: string | null,
  ) {
    const chosen = rangeIn(readChoice(axis));
    if (chosen !== null) this.look(chosen);
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }

  look(range: Range | null): void {
    if (range?.[0] === this.range?.[0] && range?.[1] === this.range?.[1]) return;
    this.range = range;
    window.clearTimeout(this.timer);
    writeChoices({ [this.axis]: range && `${Math.round(range[0])}-${Math.round(range[1])}` });
    if (range === null) this.forget();
    else if (this.address !== null) {
      this.timer = window.setTimeout(() => void this.ask(range), DEBOUNCE_MS);
    }
    this.announce();
  }

  /** A figure with its finer values in the window, and its own around it. */
  refined<F extends Zoomed>(figure: F): F {
    const finer = this.finer.get(figure.id);
    if (this.range === null || finer === undefined || finer.type !== figure.type) return figure;
    const last = this.joined.get(figure.id);
    if (last?.whole === figure && last.finer === finer) return last.both as F;
    const both = spliced(figure, finer);
    this.joined.set(figure.id, { whole: figure, finer, both });
    return both as F;
  }

  private forget(): void {
    this.request?.abort();
    this.finer = new Map();
    this.known = null;
    this.error = null;
    this.isLoading = false;
  }

  private async ask([first, last]: Range): Promise<void> {
    const width = last - first;
    if (this.known && this.known[0] <= first && last <= this.known[1] && this.knowsEnough(width)) {
      return;
    }
    this.request?.abort();
    const request = new AbortController();
    this.request = request;
    this.become(true, null);
    const wide: Range = [
      Math.max(0, Math.floor(first - MARGIN * width)),
      Math.ceil(last + MARGIN * width),
    ];
    try {
      const lens = this.lens === null ? "" : `&lens=${encodeURIComponent(this.lens)}`;
      const sign = this.address!.includes("?") ? "&" : "?";
      const address = `${this.address}${sign}first=${wide[0]}&last=${wide[1]}${lens}`;
      const answer = await fetched<{ figures: readonly Figure[] }>(address, request.signal);
      const ours = answer.figures.filter(isZoomed).filter((figure) => figure.axis === this.axis);
      this.finer = new Map(ours.map((figure) => [figure.id, figure]));
      this.known = wide;
      this.become(false, null);
    } catch (error) {
      if (!request.signal.aborted) this.become(false, (error as Error).message);
    }
  }

  /** Values that were asked for a much wider window are too coarse for this one. */
  private knowsEnough(width: number): boolean {
    return this.known !== null && this.known[1] - this.known[0] <= 3 * width;
  }

  private become(isLoading: boolean, error: string | null): void {
    this.isLoading = isLoading;
    this.error = error;
    this.announce();
  }

  private announce(): void {
    for (const listener of this.listeners) listener();
  }
}

function isZoomed(figure: Figure): figure is Zoomed {
  return figure.type === "lines" || figure.type === "heatmap";
}

/** Finer values where there are some, the figure's own before and after them. */
export function spliced(whole: Zoomed, finer: Zoomed): Zoomed {
  const first = finer.at[0];
  const last = finer.at[finer.at.length - 1];
  if (first === undefined || last === undefined) return whole;
  const before = whole.at.findIndex((at) => at >= first);
  const head = before === -1 ? whole.at.length : before;
  const after = whole.at.findIndex((at) => at > last);
  const tail = after === -1 ? whole.at.length : after;
  const join = <T>(own: readonly T[], fine: readonly T[]): T[] => [
    ...own.slice(0, head),
    ...fine,
    ...own.slice(tail),
  ];
  const at = join(whole.at, finer.at);
  const gaps = finer.at.map(() => null);
  if (whole.type === "lines" && finer.type === "lines") {
    const byName = new Map(finer.series.map((series) => [series.name, series]));
    const series = whole.series.map((own) => {
      const fine = byName.get(own.name);
      if (own.at !== null) return splicedRun(own, own.at, fine);
      return {
        ...own,
        values: join(own.values, fine?.values ?? gaps),
        low: joinedEnds(own.low, fine?.low ?? fine?.values ?? gaps, join),
        high: joinedEnds(own.high, fine?.high ?? fine?.values ?? gaps, join),
      };
    });
    const outside = whole.marks.filter((mark) => mark.until < first || mark.begin > last);
    return { ...whole, at, series, marks: [...outside, ...finer.marks] };
  }
  if (whole.type === "heatmap" && finer.type === "heatmap") {
    const byName = new Map(finer.rows.map((row, index) => [row, finer.values[index]]));
    const values = whole.values.map((own, index) =>
      join(own, byName.get(whole.rows[index] ?? "") ?? gaps),
    );
    return { ...whole, at, values };
  }
  return whole;
}

/** The same of a run's curve among others, which has steps of its own. */
function splicedRun(own: Series, ownAt: readonly number[], fine: Series | undefined): Series {
  const at = fine?.at ?? [];
  const [first, last] = [at[0], at[at.length - 1]];
  if (fine === undefined || first === undefined || last === undefined) return own;
  const after = (isPast: (place: number) => boolean): number => {
    const found = ownAt.findIndex(isPast);
    return found === -1 ? ownAt.length : found;
  };
  const [head, tail] = [after((place) => place >= first), after((place) => place > last)];
  const join = <T>(whole: readonly T[], finer: readonly T[]): T[] => [
    ...whole.slice(0, head),
    ...finer,
    ...whole.slice(tail),
  ];
  return {
    ...own,
    at: join(ownAt, at),
    values: join(own.values, fine.values),
    low: joinedEnds(own.low, fine.low ?? fine.values, join),
    high: joinedEnds(own.high, fine.high ?? fine.values, join),
  };
}

type Values = readonly (number | null)[];

/** One end of a band; where each finer point is a single value, that is both ends. */
function joinedEnds(
  own: Values | null,
  fine: Values,
  join: (own: Values, fine: Values) => Values,
): Values | null {
  return own === null ? null : join(own, fine);
}

/** "100-200" in an address. */
function rangeIn(text: string | null): Range | null {
  const found = /^(\d{1,15})-(\d{1,15})$/.exec(text ?? "");
  const [first, last] = found ? [Number(found[1]), Number(found[2])] : [0, 0];
  return first < last ? [first, last] : null;
}

/** The windows of a page: one per way of counting steps. */
export class StepWindows {
  private readonly windows = new Map<StepAxis, StepWindow>();

  constructor(
    private readonly address: string | null,
    private readonly lens: string | null,
  ) {}

  of(axis: StepAxis): StepWindow {
    let found = this.windows.get(axis);
    if (found === undefined) {
      found = new StepWindow(this.address, axis, this.lens);
      this.windows.set(axis, found);
    }
    return found;
  }
}

export const WindowContext = createContext<StepWindows>(new StepWindows(null, null));

/** The page's window on such steps, and a new drawing whenever it moves. */
export function useStepWindow(axis: StepAxis): StepWindow {
  const steps = useContext(WindowContext).of(axis);
  const [, draw] = useState(0);
  useEffect(() => steps.listen(() => draw((count) => count + 1)), [steps]);
  return steps;
}
