/** Follows a page on the server: whole first, then what changes, and back again after a break. */

import { applied, type Delta } from "./apply";
import type { Page } from "./schema";

const PATIENCE_MS = 3000; // a shorter break heals before anyone could read about it
const REOPEN_MS = 2000; // where the browser itself gave up
const SILENCE_MS = 12_000; // the server says something every 5 s, if only that it is there
const HIDDEN_MS = 2000; // a glance at another tab costs no new page

export interface Live {
  page: Page | null;
  /** Nothing has come for a while, and it is being tried again. */
  isLost: boolean;
  /** Why nothing more will come: the run was deleted, or never was. */
  error: string | null;
  /** Nothing more will come because nothing more happens: the run is over. */
  isOver: boolean;
}

export const NOTHING: Live = { page: null, isLost: false, error: null, isOver: false };

/** One stream; `see` is told whenever there is something new, and never while the tab is hidden. */
export class Follower {
  private state: Live;
  private source: EventSource | null = null;
  private lossTimer = 0;
  private silenceTimer = 0;
  private reopenTimer = 0;
  private hiddenTimer = 0;

  constructor(
    private readonly events: string,
    private readonly json: string,
    first: Page | null,
    private readonly see: (state: Live) => void,
  ) {
    this.state = { ...NOTHING, page: first };
  }

  start(): () => void {
    const onVisibility = (): void => this.followVisibility();
    document.addEventListener("visibilitychange", onVisibility);
    this.followVisibility();
    return () => {
      document.removeEventListener("visibilitychange", onVisibility);
      this.close();
    };
  }

  /** A hidden tab gives its connection back: a browser has but six of them for one server. */
  private followVisibility(): void {
    window.clearTimeout(this.hiddenTimer);
    if (document.hidden) {
      this.hiddenTimer = window.setTimeout(() => this.close(), HIDDEN_MS);
    } else {
      this.see(this.state);
      if (this.source === null && this.state.error === null) this.open();
    }
  }

  private open(): void {
    const source = new EventSource(this.events);
    this.source = source;
    this.awaitWord();
    source.addEventListener("open", () => this.alive());
    source.addEventListener("beat", () => this.alive());
    source.addEventListener("page", (event) => this.alive({ page: parsed(event) as Page }));
    source.addEventListener("delta", (event) => this.takeDelta(parsed(event) as Delta));
    source.addEventListener("gone", (event) => this.gone(parsed(event)));
    source.addEventListener("error", () => this.broken(source));
  }

  private close(): void {
    this.source?.close();
    this.source = null;
    window.clearTimeout(this.reopenTimer);
    window.clearTimeout(this.silenceTimer);
    this.forgetLoss();
  }

  private forgetLoss(): void {
    window.clearTimeout(this.lossTimer);
    this.lossTimer = 0;
  }

  /** A server that hangs, or a network that swallows everything, breaks no connection. */
  private awaitWord(): void {
    window.clearTimeout(this.silenceTimer);
    this.silenceTimer = window.setTimeout(() => {
      this.close();
      this.expectLoss();
      this.open();
    }, SILENCE_MS);
  }

  private expectLoss(): void {
    this.lossTimer ||= window.setTimeout(() => this.become({ isLost: true }), PATIENCE_MS);
  }

  private takeDelta(delta: Delta): void {
    if (this.state.page === null) return; // a delta belongs to a page that has come before
    this.alive({ page: applied(this.state.page, delta) as Page });
  }

  private alive(news?: Partial<Live>): void {
    this.forgetLoss();
    this.awaitWord();
    if (news !== undefined || this.state.isLost) this.become({ ...news, isLost: false });
  }

  private gone(why: unknown): void {
    this.close();
    const isOver = (why as { is_over?: unknown } | null)?.is_over === true;
    this.become({ isLost: false, error: errorIn(why), isOver });
  }

  private broken(source: EventSource): void {
    if (source !== this.source) return;
    this.expectLoss();
    if (source.readyState === EventSource.CLOSED) void this.askWhy();
  }

  /** The browser gave up: either the server refuses, and says why, or it is not there. */
  private async askWhy(): Promise<void> {
    this.source = null;
    const refusal = await refusalOf(this.json);
    if (refusal !== null) return this.gone({ error: refusal });
    window.clearTimeout(this.reopenTimer);
    this.reopenTimer = window.setTimeout(() => {
      if (this.source === null && !document.hidden) this.open();
    }, REOPEN_MS);
  }

  private become(news: Partial<Live>): void {
    this.state = { ...this.state, ...news };
    if (!document.hidden) this.see(this.state);
  }
}

async function refusalOf(address: string): Promise<string | null> {
  try {
    const answer = await fetch(address, { headers: { accept: "application/json" } });
    return answer.status >= 400 && answer.status < 500 ? await refusalIn(answer) : null;
  } catch {
    return null; // nobody answers: it may come back
  }
}

/** Asks for a page that does not change. */
export async function fetched<T>(address: string, signal?: AbortSignal): Promise<T> {
  const answer = await fetch(address, signal ? { signal } : {});
  if (!answer.ok) throw new Error(await refusalIn(answer));
  return (await answer.json()) as T;
}

async function refusalIn(answer: Response): Promise<string> {
  try {
    return errorIn(await answer.json());
  } catch {
    return `The server answered ${answer.status} without saying why; reload the page.`;
  }
}

function errorIn(data: unknown): string {
  const error = (data as { error?: unknown } | null)?.error;
  return typeof error === "string" ? error : "The server gave no reason; reload the page.";
}

function parsed(event: Event): unknown {
  return JSON.parse((event as MessageEvent<string>).data);
}
