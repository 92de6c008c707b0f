"""One cluster as one account sees it: its administration, and the remembered answers."""

from dataclasses import replace
from typing import Final

import trio

from triomq.client import Admin, ClientInstance
from triomq.client.admin.sampler import Sampler
from triomq.dashboard.settings import Settings
from triomq.protocol.errors import ConfigError
from triomq.protocol.wire.signing import Credentials

#: Accounts of visitors at one time: each has separate connections, and asks the brokers regularly.
MAX_ACCOUNTS: Final = 16
#: After so long without a request the account is signed out.
IDLE_S: Final = 1800.0
_CHECK_S: Final = 60.0


class Watched:
    """The connections to a cluster; they live in a separate task.

    Attributes:
        instance, admin: to ask with.
        sampler: the remembered answers.
    """

    instance: ClientInstance
    admin: Admin
    sampler: Sampler

    def __init__(self, settings: Settings, credentials: Credentials | None = None) -> None:
        """Take the settings; nothing is connected before it runs.

        Args:
            settings: of the dashboard.
            credentials: account of a visitor, checked at the start; ``None``: the dashboard's own, if it has one.
        """
        limit_s = settings.answer_s
        config = replace(settings.client, connect=False, api_timeout_s=limit_s, connect_timeout_s=limit_s)
        if credentials is not None:
            config = replace(config, credentials=credentials, connect=True)
        self._namesrv, self._config = settings.namesrv, config
        self._scope: Final = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the connections until :meth:`stop`."""
        with self._scope:
            async with ClientInstance(self._namesrv, self._config) as self.instance:
                async with Admin(instance=self.instance) as self.admin:
                    self.sampler = Sampler(self.admin)
                    await self.sampler.keep_asking(task_status)

    def stop(self) -> None:
        """Close the connections."""
        self._scope.cancel()

    @property
    def is_stopped(self) -> bool:
        """Whether :meth:`stop` was called."""
        return self._scope.cancel_called


class Accounts:
    """The clusters as the accounts of visitors see them; each ends when its visitor has not looked for half an hour."""

    def __init__(self, settings: Settings, nursery: trio.Nursery) -> None:
        """Take the settings, and the nursery in which they run."""
        self._settings = settings
        self._nursery = nursery
        self._open: list[Watched] = []

    async def open(self, credentials: Credentials) -> Watched:
        """Return the cluster as an account sees it.

        Raises:
            ConfigError: as many accounts are signed in as there may be.
            BrokerResponseError: a broker refuses the account.
            NameServerError: no name server answered.
        """
        self._forget_stopped()
        if len(self._open) >= MAX_ACCOUNTS:
            raise ConfigError(f"{MAX_ACCOUNTS} accounts are signed in, more are not possible now; try again later")
        watched = Watched(self._settings, credentials)
        await self._nursery.start(watched.run)
        self._open.append(watched)
        return watched

    async def run(self) -> None:
        """Stop those whose visitors have left, for ever."""
        while True:
            await trio.sleep(_CHECK_S)
            for watched in self._open:
                if trio.current_time() - watched.sampler.looked_at > IDLE_S:
                    watched.stop()
            self._forget_stopped()

    def _forget_stopped(self) -> None:
        self._open = [watched for watched in self._open if not watched.is_stopped]
