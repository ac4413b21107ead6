// SPDX-License-Identifier: GPL-2.0-only
/* The pattern for other modules: entrain_qpw.h says what it is. */
#include <linux/export.h>

#include "qpw.h"

bool entrain_qpw_queue_on(int cpu, struct workqueue_struct *wq, struct qpw_struct *qpw)
{
	if (!qpw_cpu_chosen(cpu))
		return queue_work_on(cpu, wq, &qpw->work);
	qpw->work.func(&qpw->work);
	return true;
}
EXPORT_SYMBOL_GPL(entrain_qpw_queue_on);

bool entrain_qpw_flush(struct qpw_struct *qpw)
{
	return flush_work(&qpw->work);
}
EXPORT_SYMBOL_GPL(entrain_qpw_flush);
