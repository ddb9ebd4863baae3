/** The rows of the list, asked for in blocks as they come into sight, and asked for again. */

import type { GroupRow, ListRow, RunsPage } from "../schema";

export const BLOCK = 100; // rows asked for at once
const POLL_MS = 2000; // how often the rows in sight are asked for again
const POLL_SHARE = 10; // a slow server is asked the less often: a tenth of its time is enough
const KNOWN_S = 10; // how old an answer to a click may be; the next poll brings what is new
const FRESH_S = 1;
const PATIENCE_MS = 3000; // a shorter break heals before anyone could read about it
const SILENCE_MS = 12_000; // a server that hangs breaks no connection
const SETTLED_MS = 60; // while one scrolls fast, what is passed is not asked for

export type Row = ListRow | GroupRow;

/** What is known of the list. */
export interface ListState {
  /** The latest answer, whose columns and total hold; `null` before the first. */
  page: RunsPage | null;
  /** Why the server does not understand the question; `null` where it does. */
  error: string | null;
  isLost: boolean;
  /** Whether the rows are still those of the question before. */
  isOld: boolean;
}

export const NO_LIST: ListState = { page: null, error: null, isLost: false, isOld: false };

export class ListRows {
  private query = "";
  private shownQuery = "";
  private blocks = new Map<number, readonly Row[]>();
  private state: ListState = NO_LIST;
  private first = 0;
  private last = BLOCK - 1;
  private asking: AbortController | null = null;
  private timer = 0;
  private settleTimer = 0;
  private lossTimer = 0;

  constructor(
    private readonly base: string,
    private readonly see: (state: ListState) => void,
    /** Told when the first row in sight has moved by so many places. */
    private readonly moved: (places: number) => void,
  ) {}

  start(): () => void {
    const onVisibility = (): void => {
      window.clearTimeout(this.timer);
      if (!document.hidden) void this.ask(FRESH_S);
    };
    document.addEventListener("visibilitychange", onVisibility);
    return () => {
      document.removeEventListener("visibilitychange", onVisibility);
      this.asking?.abort();
      for (const timer of [this.timer, this.settleTimer, this.lossTimer]) window.clearTimeout(timer);
    };
  }

  /** Asks another question; the rows of the one before stay until it is answered. */
  setQuery(query: string): void {
    if (query === this.query && this.state.page !== null) return;
    this.query = query;
    [this.first, this.last] = [0, BLOCK - 1];
    void this.ask(KNOWN_S);
  }

  /** Says which rows are in sight. */
  show(first: number, last: number): void {
    [this.first, this.last] = [first, last];
    window.clearTimeout(this.settleTimer);
    if (this.missing().length === 0) return;
    this.settleTimer = window.setTimeout(() => void this.ask(KNOWN_S), SETTLED_MS);
  }

  /** Asks again now, for something that was changed from here. */
  refresh(): void {
    void this.ask(0);
  }

  at(place: number): Row | null {
    return this.blocks.get(Math.floor(place / BLOCK))?.[place % BLOCK] ?? null;
  }

  /** A run's row, where it is at hand. */
  named(name: string): Row | null {
    for (const rows of this.blocks.values()) {
      const found = rows.find((row) => keyOf(row) === name);
      if (found !== undefined) return found;
    }
    return null;
  }

  private inSight(): number[] {
    const total = this.query === this.shownQuery ? (this.state.page?.total ?? 1) : 1;
    const first = Math.floor(Math.max(0, Math.min(this.first, total - 1)) / BLOCK);
    const last = Math.floor(Math.max(0, Math.min(this.last, total - 1)) / BLOCK);
    return Array.from({ length: last - first + 1 }, (_, place) => first + place);
  }

  private missing(): number[] {
    return this.inSight().filter((block) => !this.blocks.has(block));
  }

  /** Asks for the blocks in sight that are missing, or for all of them where they must be fresh. */
  private async ask(maxAgeS: number): Promise<void> {
    window.clearTimeout(this.timer);
    this.asking?.abort();
    const asking = new AbortController();
    this.asking = asking;
    const isNew = this.query !== this.shownQuery || this.state.page === null;
    const wanted = isNew || maxAgeS < KNOWN_S ? this.inSight() : this.missing();
    const [query, began] = [this.query, performance.now()];
    // The first answer may take long: then the server reads all runs.
    const silence = window.setTimeout(() => {
      if (this.state.page !== null && this.asking === asking) this.giveUp(asking);
    }, SILENCE_MS);
    try {
      const pages = await Promise.all(
        wanted.map((block) => this.fetchBlock(query, block, maxAgeS, asking.signal)),
      );
      if (asking.signal.aborted) return;
      this.take(query, wanted, pages, maxAgeS < KNOWN_S);
    } catch (error) {
      if (asking.signal.aborted) return;
      this.fail(error as Error);
    } finally {
      window.clearTimeout(silence);
    }
    this.pollLater(performance.now() - began);
  }

  private giveUp(asking: AbortController): void {
    asking.abort();
    this.become({ isLost: true });
    this.pollLater(0);
  }

  private async fetchBlock(
    query: string,
    block: number,
    maxAgeS: number,
    signal: AbortSignal,
  ): Promise<RunsPage> {
    const search = new URLSearchParams(query);
    search.set("offset", String(block * BLOCK));
    search.set("limit", String(BLOCK));
    search.set("max_age", String(maxAgeS));
    const answer = await fetch(`${this.base}/api/runs?${search}`, { signal });
    const data = (await answer.json()) as RunsPage & { error?: string };
    if (!answer.ok) throw new Refusal(data.error ?? `The server answered ${answer.status}.`);
    return data;
  }

  private take(
    query: string,
    wanted: readonly number[],
    pages: readonly RunsPage[],
    isFresh: boolean,
  ): void {
    this.healed();
    const page = pages[0];
    if (page === undefined) return;
    const isSame = query === this.shownQuery;
    const before = this.blocks;
    const known = isSame ? rowsByName(before) : new Map<string, Row>();
    const isChanged = isFresh || !isSame || page.total !== this.state.page?.total;
    // What is out of sight may have moved as well: it is asked for when it comes into sight.
    const blocks = new Map(isChanged ? [] : before);
    wanted.forEach((block, place) => {
      const rows = pages[place]!.groups ?? pages[place]!.rows;
      blocks.set(block, rows.map((row) => sameAs(known.get(keyOf(row)), row)));
    });
    const moved = isSame && isChanged ? this.shift(before, blocks) : 0;
    [this.blocks, this.shownQuery] = [blocks, query];
    this.become({ page: sameHead(this.state.page, page), error: null, isOld: false });
    if (moved !== 0) this.moved(moved);
  }

  /** By how many places the first row in sight has moved; 0 where the list is at its top. */
  private shift(
    before: ReadonlyMap<number, readonly Row[]>,
    after: ReadonlyMap<number, readonly Row[]>,
  ): number {
    const row = before.get(Math.floor(this.first / BLOCK))?.[this.first % BLOCK];
    if (this.first === 0 || row === undefined) return 0;
    for (const [block, rows] of after) {
      const place = rows.findIndex((one) => keyOf(one) === keyOf(row));
      if (place !== -1) return block * BLOCK + place - this.first;
    }
    return 0;
  }

  private fail(error: Error): void {
    if (error instanceof Refusal) {
      this.healed();
      this.become({ error: error.message, isOld: this.state.page !== null });
      return;
    }
    this.lossTimer ||= window.setTimeout(() => this.become({ isLost: true }), PATIENCE_MS);
  }

  private healed(): void {
    window.clearTimeout(this.lossTimer);
    this.lossTimer = 0;
    if (this.state.isLost) this.become({ isLost: false });
  }

  private pollLater(tookMs: number): void {
    window.clearTimeout(this.timer);
    if (document.hidden) return;
    const pauseMs = Math.max(POLL_MS, POLL_SHARE * tookMs);
    this.timer = window.setTimeout(() => void this.ask(FRESH_S), pauseMs);
  }

  private become(news: Partial<ListState>): void {
    this.state = { ...this.state, ...news };
    this.see(this.state);
  }
}

class Refusal extends Error {}

export function keyOf(row: Row): string {
  return "name" in row ? row.name : `group ${row.filter}`;
}

function rowsByName(blocks: ReadonlyMap<number, readonly Row[]>): Map<string, Row> {
  const found = new Map<string, Row>();
  for (const rows of blocks.values()) for (const row of rows) found.set(keyOf(row), row);
  return found;
}

/** The earlier object where nothing about it has changed: its row is not drawn again. */
function sameAs<T>(before: T | undefined, now: T): T {
  return before !== undefined && JSON.stringify(before) === JSON.stringify(now) ? before : now;
}

/** The answer with the columns, notes and baseline of the one before, where they are equal. */
function sameHead(before: RunsPage | null, now: RunsPage): RunsPage {
  if (before === null) return now;
  const columns = sameAs(before.columns, now.columns);
  const baseline = sameAs(before.baseline ?? undefined, now.baseline) ?? null;
  return { ...now, columns, baseline };
}
